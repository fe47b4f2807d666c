"""Explains which limits apply to a request, with the rules and the plan of the middleware."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.admin.buckets import result_of, split_key
from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.core.log import capture_warnings, single_line
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.http.paths import Forms
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import refusal_response
from ratelimit_mw.rules.plan import Match, Plan, conclude, make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import CompiledLimit, LimitSet
from ratelimit_mw.settings.features import SettlePolicy
from ratelimit_mw.settings.limits import TieredLimits, parse_limits
from ratelimit_mw.settings.rule import Rule

_SHARED: Final = "missing="  # prefix of the identity that all requests without a key share
_GLOBAL_LIMITS: Final = {
    "app": "app_limits, for every request",
    "default": "limits, used by default",
    "preflight": "limits, in separate buckets for CORS preflights",
}
_MESSAGE_LIMITS: Final = "If it opens a websocket, limits for each message; "
_MAX_RESULT_LENGTH: Final = 100  # characters of a callable's result that are shown

_CallLog = list[tuple[str, str]]  # pairs of a callable's name and its result


def explain(settings: Settings, make_request: Callable[[], Request], warnings: Sequence[str]) -> Iterator[str]:
    """Yield an explanation of the limits that apply to the request of `make_request`, line by line.

    Calls the callables of the settings, but does not query the store. `warnings`: the warnings of the start, which it
    does not repeat.
    """
    request = make_request()
    call_log: _CallLog = []
    with capture_warnings() as notes:
        recording_settings = _with_recording(settings, call_log)
        match = RuleSet(recording_settings).match(request)
        messages = match.messages if match and request.method == "GET" else None
        calls = [*(match.callables if match else ()), *(messages.callables if messages else ())]
        results = _evaluate_callables(list(dict.fromkeys(calls)), request, call_log)
        plan = make_plan(match, request, results) if match else None
        message_plan = make_plan(messages, request, results) if messages else None
    user = f"user {request.user}" if request.user else "no user"
    yield f"{request.method} {_path(request)} from {_client(request)}, {user}"
    yield ""
    if match is None or plan is None:
        yield f"Not limited: {_why_not(settings, make_request())}."
    else:
        yield from _applies(recording_settings, match, plan, request, results)
    if messages is not None and message_plan is not None:
        yield from ("", *_messages(messages, message_plan))
    if call_log:
        yield from ("", "Results of callables:", *columns(dict.fromkeys(call_log)))
    if notes := [note for note in notes if note not in warnings]:
        yield from ("", "Log messages:", *(f"  {note}" for note in notes))


def columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Format rows as two aligned columns."""
    pairs = list(rows)
    width = max((len(first) for first, _ in pairs), default=0)
    return [f"  {first:<{width}}  {second}" for first, second in pairs]


def _path(request: Request) -> str:
    forms = Forms.of(request.paths)
    others = dict.fromkeys(path for path in (*forms.received, *forms.normal) if path != request.path)
    return f"{request.path}, also matched as {' and '.join(others)}," if others else request.path


def _client(request: Request) -> str:
    peer = request.raw["client"]
    named = request.client or "no address"
    return named if peer is None or peer[0] == request.client else f"{named} (forwarded by {peer[0]})"


def _why_not(settings: Settings, request: Request) -> str:
    if not settings.enabled:
        return "enabled = false switches everything off"
    with capture_warnings():
        without_paths = RuleSet(replace(settings, exempt=())).match(request)
    return "the client is on the safelist" if without_paths is None else "the path is exempt"


def _applies(settings: Settings, match: Match, plan: Plan, request: Request, results: CallResults) -> Iterator[str]:
    if not match.denied:
        yield "Rules that apply, in order:"
        yield from columns(_rules(settings, match, request, results))
        yield ""
    if plan.denied_source:
        status = refusal_response(conclude(match, plan, ()), settings.headers).status
        yield f"Refused with {status}, without querying the store: {_why_denied(match, plan)}."
        return
    if not plan.charges:
        yield "No limit applies."
    else:
        yield "Limits, charged in one step, all or none:"
    yield from _limits(plan)
    for entry in match.limits_for(request, match.route, results) or ():
        if not any(entry is planned for planned in plan.compiled_limits):
            yield ""
            yield f"  {entry.policy.name}: skipped, because its key, {entry.key.text}, is missing (missing_key)"


def _why_denied(match: Match, plan: Plan) -> str:
    if match.denied:
        return "the client is on the blocklist"
    if plan.denied_source == "store":
        return "a key is missing, and missing_key = 'deny'"
    return "a callable returned no limits, and there are no others to use instead"


def _rules(settings: Settings, match: Match, request: Request, results: CallResults) -> Iterator[tuple[str, str]]:
    names = [rule.full_name for rule in settings.parsed_rules()]
    for limit_set in match.limit_sets:
        if limit_set.fixed_limits == [] and limit_set.rule is None and limit_set.name == "app":
            continue
        facts = [_GLOBAL_LIMITS.get(limit_set.name, "")]
        if limit_set.rule is not None:
            facts = [f"rules[{names.index(limit_set.name)}]", *_facts(limit_set.rule)]
        limits = limit_set.limits_for(request, match.route, results)
        if limit_set.tier is not None:
            facts.append(_tier(settings, limit_set, request, match.route, results))
        elif limits is None:
            is_default = limit_set.rule is None and limit_set.name != "app"
            effect = "the request is refused" if is_default else "the default limits apply"
            facts.append(f"its callable returned no limits, so {effect}")
        elif not limits and "exempt" not in facts:
            facts.append("no limits")
        yield limit_set.name, ", ".join(facts)


def _facts(rule: Rule) -> Iterator[str]:
    yield from (name for name in ("exempt", "shadow") if getattr(rule, name))
    if isinstance(rule.when, _RecordedCallable) and rule.when.failed:
        yield "its `when` failed, so it applies and the search continues"
    elif rule.is_final:
        yield "ends the search"


def _tier(settings: Settings, limit_set: LimitSet, request: Request, route: str, results: CallResults) -> str:
    """Describe which tier was selected, and by which identity."""
    top = (settings.tier, settings.default_tier)
    field = "app_limits" if limit_set.name == "app" else "limits"
    tiers = (
        limit_set.rule.resolve_limits(*top) if limit_set.rule else parse_limits(field, getattr(settings, field), *top)
    )
    if not isinstance(tiers, TieredLimits):
        return ""
    chosen = tiers.select(request, route, results)
    name = next(name for name, limits in tiers.all.items() if limits is chosen)
    identity = tiers.key.identity(request, route, results) or f"{tiers.key.text} is missing"
    return f"tier {name} ({identity})"


def _messages(match: Match, plan: Plan) -> Iterator[str]:
    if plan.denied_source:
        yield f"If it opens a websocket, the first message closes it: {_why_denied(match, plan)}."
    elif plan.charges:
        yield _MESSAGE_LIMITS + ("a refused message closes it:" if match.closes else "a refused message is dropped:")
        yield from _limits(plan)


def _limits(plan: Plan) -> Iterator[str]:
    for number, (charge, entry) in enumerate(zip(plan.charges, plan.compiled_limits, strict=True)):
        yield from ("",) * (number > 0)
        yield from _limit(charge, entry)


def _limit(charge: Charge, entry: CompiledLimit) -> Iterator[str]:
    identity, rule = split_key(charge.key)
    limit = charge.limit
    yield f"  {entry.policy.name}"
    kind = "penalty" if charge.role == "penalty" else "limit"
    rows = [(kind, limit.notation), ("rule", rule), ("key", entry.key.text)]
    if identity.startswith(_SHARED):
        rows.append(("identity", f"{identity}, one bucket for all requests without a key"))
    else:
        rows.append(("identity", identity))
    if kind == "limit":
        rows += [("cost", str(charge.cost)), ("at most", _at_most(limit))]
    if entry.queue:
        rows.append(("queue", f"{entry.queue} requests in each process, each for at most {entry.queue_timeout:g} s"))
    if entry.policy.settle_policy is not None:
        rows.append(("settled", _settlement(entry.policy.settle_policy)))
    if entry.shadow:
        rows.append(("shadow", "counted and reported, but never refuses"))
    yield from (f"  {row}" for row in columns(rows))


def _settlement(policy: SettlePolicy) -> str:
    clauses = [] if policy.call is None else [f"{callable_name(policy.call)} returns the actual cost"]
    if policy.counted_statuses is not None:
        clauses.append(
            f"only responses with these statuses are charged: {', '.join(map(str, sorted(policy.counted_statuses)))}"
        )
    return "; ".join(clauses)


def _at_most(limit: Limit) -> str:
    window = f"{limit.window:.6f}".rstrip("0").rstrip(".")
    if limit.is_concurrency:
        return f"{limit.quota} requests in progress; a slot that is not renewed is free after {window} s"
    if isinstance(limit, CalendarWindow):
        begins = f", {limit.start_text}" if limit.start_text else ""
        return f"{limit.quota} in each {limit.period} of the calendar in {limit.zone}{begins}"
    most = limit.max_per_window
    return f"{most} in any {window} s" if most is not None else "unknown for its algorithm"


def _with_recording(settings: Settings, call_log: _CallLog) -> Settings:
    """Return the settings with plain identities, and with callables of `when` and of the client lists recorded.

    Matching calls those callables. `_evaluate_callables` calls all others.
    """

    def with_log(value: Any) -> Any:
        is_call = callable(value) or is_callable_name(value)
        return _RecordedCallable(resolve_callable(value), call_log) if is_call else value

    return replace(
        settings,
        rules=[replace(rule, when=with_log(rule.when)) for rule in settings.parsed_rules()],
        safelist=[with_log(entry) for entry in settings.safelist],
        blocklist=[with_log(entry) for entry in settings.blocklist],
        key_secret="",
        plain_keys=True,
    )


def _evaluate_callables(calls: Sequence[RequestCallable], request: Request, call_log: _CallLog) -> CallResults:
    """Call the callables and return their results. One that raises counts as `FAILED`."""
    results: dict[RequestCallable, Any] = {}
    for call in calls:
        try:
            results[call] = result_of(call, request)
            call_log.append((_qualified_name(call), _format_result(results[call])))
        except Exception as error:  # noqa: BLE001  # it is recorded and shown
            results[call] = FAILED
            call_log.append((_qualified_name(call), _format_error(error)))
    return results


def _qualified_name(call: Any) -> str:
    """Return `package.module:function`."""
    return f"{getattr(call, '__module__', '')}:{getattr(call, '__qualname__', type(call).__qualname__)}"


class _RecordedCallable:
    """A plain callable that wraps another one and records its results.

    `failed`: whether the last call raised, or returned neither True nor False.
    """

    def __init__(self, call: RequestCallable, call_log: _CallLog) -> None:
        self._call: Final = call
        self._call_log: Final = call_log
        self.failed = False
        self.__qualname__ = _qualified_name(call)

    def __call__(self, request: Request) -> Any:
        """Call it and record the result."""
        try:
            result = self._call(request)
        except Exception as error:
            self.failed = True
            self._call_log.append((_qualified_name(self._call), _format_error(error)))
            raise
        self.failed = not isinstance(result, bool)
        self._call_log.append((_qualified_name(self._call), _format_result(result)))
        return result


def _format_result(result: object) -> str:
    return single_line(f"{result!r:.{_MAX_RESULT_LENGTH}}")


def _format_error(error: Exception) -> str:
    return single_line(f"raised {type(error).__name__}: {error}")
