"""Checks at startup for settings that are valid, but probably not as intended. Each finding includes the fix."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ratelimit_mw.checks.reach import reach_findings
from ratelimit_mw.core.limit import Limit
from ratelimit_mw.core.log import Finding
from ratelimit_mw.core.structs import defaults_of
from ratelimit_mw.core.validation import closest_match
from ratelimit_mw.http.keys import ANY_PREFIX, Key
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import CompiledLimit, LimitSet
from ratelimit_mw.settings.limits import NOT_BY_TIER
from ratelimit_mw.settings.rule import Rule, placed

# quotas that an algorithm admits in the worst window
_WORST_WINDOW_QUOTAS: Final = {"fixed_window": 2, "sliding_window_counter": 2, "sliding_window_log": 1}
_LONG_TIMEOUT: Final = 5.0  # seconds; a larger store_timeout was probably meant in milliseconds
_NOTHING_SHARED: Final = "each of its values has slots of its own; give the slots a key in common, such as 'all'"
_SLOT_OPTIONS: Final = ("queue", "queue_timeout", "fair_share", "slot_lifetime", "slot_retry")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY")
_METHOD_HINTS: Final = {  # words that frameworks use in place of methods
    "ANY": "leave out methods for all of them",
    "ALL": "leave out methods for all of them",
    "WEBSOCKET": "a websocket begins with a GET",
    "WS": "a websocket begins with a GET",
}
_BANS_ALL: Final = (
    "its penalty has the key all, so the refusals of one client ban all clients; give it a key for each client"
)
_ALL_SHADOW: Final = (
    "all of its limits are shadow and refuse no request, so its penalty has no effect; remove the penalty, or shadow "
    "from one of the limits"
)
_RARE: Final = (  # other methods in IANA's registry, of caches, and of UPnP
    "ACL BAN BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE "
    "MOVE NOTIFY ORDERPATCH PRI PROPFIND PROPPATCH PURGE REBIND REFRESH REPORT SEARCH SUBSCRIBE UNBIND UNCHECKOUT "
    "UNLINK UNLOCK UNSUBSCRIBE UPDATE UPDATEREDIRECTREF"
)
_RARE_METHODS: Final = frozenset(_RARE.split())


def startup_findings(
    rules: Sequence[Rule], compiled: Sequence[LimitSet], messages: Sequence[LimitSet]
) -> Iterator[Finding]:
    """Yield a finding for each rule that never matches and each limit that has no effect or that clients can avoid.

    `compiled`: all limits of requests; `app_limits` come first, the default limits last.
    """
    settings, default = compiled[0].settings, compiled[-1]
    yield from reach_findings(rules, settings, has_default=default.fixed_limits is None or bool(default.fixed_limits))
    yield from _no_effect_part_findings([Key(settings.key, ANY_PREFIX)], "key")
    for rule in rules:
        yield from _method_findings(rule, f"rule {rule.full_name}")
    is_enforced = any(limit_set.name == "app" and _always_enforced(limit_set) for limit_set in compiled)
    for index, limit_set in enumerate(compiled):
        yield from _rule_findings(
            limit_set, "" if is_enforced and limit_set.name != "app" else "add a limit with another key, or app_limits"
        )
        yield from _no_effect_findings(limit_set, f"rule {limit_set.name}", _limits_beside(compiled, index))
    for limit_set in messages:
        yield from _rule_findings(limit_set, "add a limit with another key")
    if settings.metrics_folder is not None and not settings.metrics:
        yield Finding(
            "metrics_folder has no effect without metrics; set metrics = true, or remove it",
            weakens_limits=False,
            code="RL-135",
        )
    if settings.store_timeout > _LONG_TIMEOUT:
        yield Finding(
            f"store_timeout: got {settings.store_timeout:g}, which is in seconds: while the store does not answer, a "
            "request waits that long; write milliseconds as a fraction, such as 0.05 for 50 milliseconds",
            weakens_limits=False,
            code="RL-118",
        )
    options = [option for option in ("tier", "default_tier") if getattr(settings, option) is not None]
    if options and not any(limit_set.tier for limit_set in (*compiled, *messages)):
        yield Finding(f"{', '.join(options)}: {NOT_BY_TIER}", code="RL-119")
    if settings.proxy_header.lower() != "x-forwarded-for" and not settings.trusted_proxies:
        yield Finding(
            f"proxy_header: {settings.proxy_header} is never read, because trusted_proxies is empty, so clients are "
            "counted by the socket's address; put your proxies into trusted_proxies, or remove proxy_header",
            code="RL-120",
        )


def unused_slot_options(compiled: Sequence[LimitSet]) -> Iterator[Finding]:
    """Yield a finding for the global options of slots that no limit uses. Call it only if no endpoint limit has slots.

    `compiled`: all limits of requests.
    """
    settings = compiled[0].settings
    defaults = defaults_of(type(settings))
    unused = [option for option in _SLOT_OPTIONS if option != "slot_retry" or not settings.latency_goal]
    configured = [option for option in unused if getattr(settings, option) != defaults[option]]
    if configured and not any(limit_set.has_slots for limit_set in compiled):
        pronoun = "it" if len(configured) == 1 else "them"
        text = f"no limit here has concurrency slots; set concurrent, or remove {pronoun}"
        yield Finding(f"{', '.join(configured)}: {text}", code="RL-127")
    elif "queue_timeout" in configured and not any(settings.for_rule(one.rule, "queue") for one in compiled):
        text = "queue_timeout: no limit here has a queue; set queue, or remove it"
        yield Finding(text, weakens_limits=False, code="RL-127")
    elif "fair_share" in configured and not any(one.shares_fairly for one in compiled):
        yield Finding(f"fair_share: {_NOTHING_SHARED}", code="RL-127")


def unseen_messages(settings: Settings, observer: str) -> Iterator[Finding]:
    """Yield a finding for each option `messages`. `observer`: what enforces the limits, but sees no messages."""
    places: list[tuple[str, Settings | Rule]] = [("", settings)]
    places += [(f"{place}.", rule) for place, rule in placed(settings.parsed_rules())]
    for place, one in places:
        if one.messages:
            yield Finding(
                f"{place}messages: {observer} does not see messages of websockets, so they are not limited; limit them "
                "in the app, and remove this option",
                code="RL-133",
            )


class EndpointLimitChecks:
    """Checks each endpoint limit once, as `startup_findings` checks rules. `compiled`: as there."""

    __slots__ = ("_compiled", "_seen")

    def __init__(self, compiled: Sequence[LimitSet]) -> None:
        self._compiled: Final = compiled
        self._seen: Final[set[str]] = set()

    def findings(self, limit_sets: Iterable[LimitSet]) -> Iterator[Finding]:
        """Yield the findings on the limits of one endpoint."""
        every = list(limit_sets)
        is_enforced = any(map(_always_enforced, (self._compiled[0], *every)))
        for limit_set in every:
            if limit_set.bucket_name in self._seen or limit_set.rule is None:
                continue
            self._seen.add(limit_set.bucket_name)
            place = f"@limit {limit_set.name}"
            yield from _method_findings(limit_set.rule, place)
            yield from _limit_findings(limit_set, "" if is_enforced else "add a limit with another key", place)
            # a rule of the settings may match the path, too
            outer = self._compiled[:-1] if limit_set.rule.is_final else self._compiled
            yield from _no_effect_findings(limit_set, place, (*every, *outer))


def _method_findings(rule: Rule, place: str) -> Iterator[Finding]:
    """Yield a finding for each method that is not a known HTTP method."""
    for method in rule.methods:
        if method in _METHODS or method in _RARE_METHODS:
            continue
        guess = closest_match(method, _METHODS)
        hint = _METHOD_HINTS.get(method) or (guess and f"did you mean {guess}?")
        # a method without a hint may be a custom method, which is allowed
        yield Finding(
            f"{place}: methods has {method}, which is not a known HTTP method; "
            f"{hint or 'if clients do not send it, remove it'}",
            weakens_limits=hint is not None,
            code="RL-121",
        )


def _limit_findings(limit_set: LimitSet, fix: str, place: str) -> Iterator[Finding]:
    """Yield findings on keys and costs. `fix`: for keys that clients choose; empty if another limit also applies."""
    keys = limit_set.keys
    counted_keys = limit_set.refusing_keys or keys
    if counted_keys and all(key.is_client_controlled for key in counted_keys) and fix:
        yield Finding(
            f"{place}: its key, {counted_keys[0].text}, is written by the client, which can use a new one for each "
            f"request; {fix}",
            code="RL-122",
        )
    else:
        yield from _missing_key_findings(limit_set, place)
    inherited = Key(limit_set.settings.key, ANY_PREFIX).text  # reported once, as the setting `key`
    yield from _no_effect_part_findings([key for key in keys if key.text != inherited], place)
    if limit_set.tier is not None and limit_set.tier.is_client_controlled:
        yield Finding(
            f"{place}: its tier, {limit_set.tier.text}, is written by the client, which can choose any tier",
            code="RL-123",
        )
    if (default := limit_set.unlimited_default) is not None:
        yield Finding(
            f"{place}: clients whose tier is missing or unknown are in the first one, {default}, which has no "
            f"limits; set default_tier, to {default!r} if this is meant",
            code="RL-138",
        )
    if any(limit.cost == 0 for limit in limit_set.known_limits if not limit.is_penalty):
        yield Finding(
            f"{place}: a limit with cost = 0 is never charged and never refuses; give it a cost of at least 1",
            code="RL-124",
        )


def _no_effect_part_findings(keys: Iterable[Key], place: str) -> Iterator[Finding]:
    for text, (part, certain, fix) in {key.text: key.no_effect for key in keys if key.no_effect}.items():
        yield Finding(
            f"{place}: {part} has no effect in the key {text}, because nearly every request has {certain}; remove it, "
            f"or write {fix}",
            weakens_limits=False,
            code="RL-128",
        )


def _missing_key_findings(limit_set: LimitSet, place: str) -> Iterator[Finding]:
    """Yield a finding for each key that clients can leave out, because all clients without it share one bucket."""
    if limit_set.settings.missing_key not in (None, "shared"):
        return
    for text in dict.fromkeys(key.text for key in limit_set.refusing_keys if key.needs_header):
        yield Finding(
            f"{place}: all clients without {text} share one bucket of its limit, so one of them can use it up for the "
            f"others; set the key to {text} | ip, or set missing_key to exempt or deny",
            weakens_limits=False,
            code="RL-125",
        )


def _rule_findings(limit_set: LimitSet, fix: str) -> Iterator[Finding]:
    """Yield findings on the limits of one rule. `fix`: see `_limit_findings`."""
    yield from _limit_findings(limit_set, fix, f"rule {limit_set.name}")
    for redundant, other in _redundant_limits(limit_set.fixed_limits or ()):
        yield Finding(
            f"rule {limit_set.name}: {redundant.policy.limit.notation} never refuses what "
            f"{other.policy.limit.notation} admits; remove it, or make it the smaller one",
            weakens_limits=False,
            code="RL-126",
        )


def _always_enforced(limit_set: LimitSet) -> bool:
    """Return whether at least one of these limits applies whatever the client sends."""
    return any(not limit.key.is_client_controlled and limit.can_refuse for limit in limit_set.known_limits)


def _redundant_limits(limits: Sequence[CompiledLimit]) -> Iterable[tuple[CompiledLimit, CompiledLimit]]:
    for limit in limits:
        for other in limits:
            same_key = (limit.key.text, limit.key.callables, limit.cost) == (
                other.key.text,
                other.key.callables,
                other.cost,
            )
            is_candidate = limit is not other and same_key
            if is_candidate and not other.shadow and _admits_all_of(limit.policy.limit, other.policy.limit):
                yield limit, other
                break


def _admits_all_of(limit: Limit, other: Limit) -> bool:
    """Return whether `limit` certainly admits all requests that `other` admits."""
    has_warmup = bool(getattr(limit, "warmup", 0))  # with a warmup, the larger rate may admit less for some time
    if type(limit) is type(other) and limit.words == other.words and limit != other and not has_warmup:
        options = [word for word in limit.words if word not in ("burst", "at_once")]
        same_options = all(getattr(limit, word) == getattr(other, word) for word in options)
        if same_options and limit.quota >= other.quota and limit.most >= other.most and limit.window <= other.window:
            return True
    if other.algorithm not in _WORST_WINDOW_QUOTAS or limit.algorithm not in _WORST_WINDOW_QUOTAS:
        return False
    most_per_window, rate = _WORST_WINDOW_QUOTAS[other.algorithm] * other.quota, other.quota / other.window
    # Twice, because a sliding window counter adds units of the window before. So it can count two worst windows.
    return 2 * most_per_window + rate * limit.window <= limit.quota


def _limits_beside(compiled: Sequence[LimitSet], index: int) -> Sequence[LimitSet]:
    """Return all limits that can apply to the requests of `compiled[index]`, whatever their paths."""
    rule = compiled[index].rule
    if rule is None or not rule.is_final:
        return compiled
    earlier = [one for one in compiled[:index] if one.rule is None or not one.rule.is_final]
    return [*earlier, compiled[index]]


def _no_effect_findings(limit_set: LimitSet, place: str, of_request: Sequence[LimitSet]) -> Iterator[Finding]:
    """Yield a finding for each option of a rule that has no effect. `of_request`: all limits of its requests."""
    for text, weakens_limits in _no_effect_texts(limit_set, of_request):
        yield Finding(f"{place}: {text}", code="RL-128", weakens_limits=weakens_limits)


def _no_effect_texts(limit_set: LimitSet, of_request: Sequence[LimitSet]) -> Iterator[tuple[str, bool]]:
    """Yield the text of each finding, and whether it weakens limits."""
    if limit_set.may_delay and limit_set.settings.max_waiting == 0 and limit_set.fixed_limits is not None:
        yield "max_waiting = 0 allows no delay, so its max_delay has no effect; remove one of them", False
    if (rule := limit_set.rule) is not None:
        if rule.penalty is not None and rule.shadow:
            yield "a shadow rule refuses no request, so its penalty has no effect; remove one of them", True
        fixed_limits = limit_set.fixed_limits
        if rule.settles and fixed_limits is not None and not any(limit.policy.settles for limit in fixed_limits):
            yield "settle and count_status have no effect: it has no limit that is settled; remove them", True
        if limit_set.has_slots and rule.queue_timeout and not limit_set.settings.for_rule(rule, "queue"):
            yield "its queue_timeout has no effect without a queue; set queue, or remove it", False
        if limit_set.has_slots and rule.fair_share is not None and not limit_set.shares_fairly:
            yield f"its fair_share has no effect: {_NOTHING_SHARED}", True
    if ban := next((limit for limit in limit_set.known_limits if limit.is_penalty), None):
        if ban.key.is_all:
            yield _BANS_ALL, False
        elif (text := _no_effect_penalty(ban, limit_set, of_request)) is not None:
            yield text, True


def _no_effect_penalty(ban: CompiledLimit, limit_set: LimitSet, of_request: Sequence[LimitSet]) -> str | None:
    """Return the text on a penalty that never bans any client; None if it may."""
    if not all(one.fixed_limits is not None or one.tier is not None for one in of_request):
        return None
    refusing = [limit for one in of_request for limit in one.known_limits if not limit.is_penalty and not limit.shadow]
    if refusing and not any(limit.key.can_collide_with(ban.key) for limit in refusing):
        return (
            f"its penalty never acts: it counts refusals by limits with the key {ban.key.text}, and no limit has it; "
            "give the penalty's rule the key of one of its limits"
        )
    if not refusing and limit_set.rule is not None and any(not limit.is_penalty for limit in limit_set.known_limits):
        return _ALL_SHADOW
    return None
