"""Finds the values that settings need and a log lacks, and parses what the user assumes instead."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.http.callables import RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.http.keys import Key
from ratelimit_mw.replay.formats.base import DURATION, HEADERS, LogFormat
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.features import parse_statuses
from ratelimit_mw.settings.rule import Rule, placed

_TEXT: Final = "text:"
_VALUES: Final = "ip, user, missing, or text:VALUE"
_SWITCHES: Final = {"settle": "cost", "slots": "none", "queue": "none", "messages": "none"}
_AGENT: Final = "header:user-agent"  # told of the clients that were refused most
_PREFLIGHT_HEADERS: Final = ("origin", "access-control-request-method")
_HOW: Final = "log it, or assume it: --assume"


class Source(Struct, frozen=True):
    """Where an assumed value comes from. `kind`: `ip`, `user`, `missing`, `run` or `text`."""

    kind: str
    text: str = ""

    def value(self, client: str | None, user: str | None, ipv6_prefix: int) -> str | None:
        """Return the value for a request of this client and user; None if it is missing."""
        if self.kind == "ip":
            return client_address(client, ipv6_prefix)
        return user if self.kind == "user" else self.text if self.kind == "text" else None


class Assumed(Struct, frozen=True):
    """The user's assumptions. `switches`: which of `settle`, `slots`, `queue` and `messages` are not replayed."""

    headers: Mapping[str, Source] = {}
    cookies: Mapping[str, Source] = {}
    callables: Mapping[RequestCallable, Source] = {}
    user: Source | None = None
    status: int | None = None
    duration: float | None = None  # seconds
    switches: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Return whether a header or cookie, such as `header:x-api-key`, is assumed."""
        kind, _, what = name.partition(":")
        return what in (self.headers if kind == "header" else self.cookies)


def parse_assumptions(assumptions: Sequence[str]) -> Assumed:
    """Parse assumptions such as `header:x-api-key=ip`. Raises one `ConfigError` for all invalid ones."""
    mistakes = ErrorCollector()
    headers: dict[str, Source] = {}
    cookies: dict[str, Source] = {}
    callables: dict[RequestCallable, Source] = {}
    others: dict[str, Any] = {}
    switches: set[str] = set()
    for text in assumptions:
        with mistakes.collect(f"--assume {text}"):
            what, equals, value = text.rpartition("=") if is_callable_name(text) else text.partition("=")
            if not equals or not value:
                raise ConfigError("expected WHAT=VALUE, such as header:x-api-key=ip", code="RL-051")
            kind, _, name = what.partition(":")
            if what in _SWITCHES:
                if value != _SWITCHES[what]:
                    raise ConfigError(
                        f"got {value!r}, expected {what}={_SWITCHES[what]}, which leaves it out", code="RL-051"
                    )
                switches.add(what)
            elif what in ("duration", "status"):
                others[what] = _number(what, value)
            elif what == "user":
                others[what] = _source(value)
            elif kind == "header" and name:
                headers[name.lower()] = _source(value)
            elif kind == "cookie" and name:
                cookies[name] = _source(value)
            elif is_callable_name(what):
                callables[resolve_callable(what, None)] = Source("run") if value == "run" else _source(value)
            else:
                raise ConfigError(
                    f"got {what!r}, expected header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, user, status, "
                    f"duration, {', '.join(_SWITCHES)}",
                    code="RL-051",
                )
    mistakes.raise_if_any()
    return Assumed(headers, cookies, callables, switches=frozenset(switches), **others)


def _source(value: str) -> Source:
    if value.startswith(_TEXT) and value != _TEXT:
        return Source("text", value.removeprefix(_TEXT))
    if value in ("ip", "user", "missing"):
        return Source(value)
    raise ConfigError(f"got {value!r}, expected {_VALUES}", code="RL-051")


def _number(what: str, value: str) -> float | int:
    if what == "status":
        statuses = parse_statuses([value])
        if statuses is not None and len(statuses) == 1:
            return next(iter(statuses))
        raise ConfigError(f"got {value!r}, expected a status such as 200", code="RL-051")
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:  # noqa: PLR2004  # seconds of a day
        raise ConfigError(f"got {value!r}, expected seconds from 0 to 86400", code="RL-051")
    return seconds


def replayed_settings(settings: Settings) -> Settings:
    """Return the settings that a replay compiles.

    Keys are plain, because only the user of the replay sees them, and hashing takes time. The lists and proxies are
    left out, because the replay itself evaluates them, once for each client.
    """
    private = {"blocklist": (), "safelist": (), "trusted_proxies": (), "key_secret": "", "plain_keys": True}
    return replace(settings, **private, store="memory://", strict=False, proxy_header="x-forwarded-for")


def check(settings: Settings, rules: RuleSet, log: LogFormat, assumed: Assumed) -> tuple[list[str], set[str]]:
    """Return notes on what the log lacks but a replay does not need, and the names of the log's values that it needs.

    Other values need not be read, which saves time. Raises one `ConfigError` for all values that a replay needs and the
    log lacks, each with its place in the settings.
    """
    mistakes = ErrorCollector()
    notes: list[str] = []
    finder = _ProblemFinder(log, assumed)
    for place, problem in _problems(settings, rules, finder):
        with mistakes.collect(place):
            raise ConfigError(problem, code="RL-057")
    for call in (*rules.callables, *assumed.callables):
        if call in assumed.callables and assumed.callables[call].kind == "run" and iscoroutinefunction(call):
            with mistakes.collect(f"--assume call:{call.__module__}:{call.__qualname__}=run"):
                raise ConfigError("the callable is async, and a replay awaits nothing", code="RL-057")
    mistakes.raise_if_any()
    if any(key.may_read_user for key in rules.keys) and not log.has_user and assumed.user is None:
        notes.append("the log has no users: all requests count as anonymous")
    if any(limit_set.may_delay for limit_set in rules.limit_sets):
        notes.append("delayed requests are counted when they arrive, as the middleware does; their delay adds nothing")
    finder.names.update(f"header:{name}" for name in _PREFLIGHT_HEADERS)  # preflights have buckets of their own
    if settings.trusted_proxies:
        finder.names.add(f"header:{settings.proxy_header.lower()}")
    return notes, set(log.names) if finder.has_callables else {DURATION, HEADERS, _AGENT, *finder.names}


def _problems(settings: Settings, rules: RuleSet, finder: "_ProblemFinder") -> Iterator[tuple[str, str]]:
    """Yield each place in the settings that needs a value which the log lacks, with the fix."""
    app, *of_rules, default = rules.limit_sets
    yield from _of_limits(app, "", "app_limits", settings, finder)
    for (place, rule), limit_set in zip(placed(settings.parsed_rules()), of_rules, strict=True):
        yield from _of_limits(limit_set, f"{place}.", "limits", settings, finder)
        yield from _of_rule(place, rule, finder)
    yield from _of_limits(default, "", "limits", settings, finder)
    for place, entries in (("safelist", settings.safelist), ("blocklist", settings.blocklist)):
        for entry in entries:
            if isinstance(entry, Mapping):
                yield from finder.header(place, f"header:{entry['header'].lower()}")
            elif callable(entry) or is_callable_name(entry):
                yield from finder.callable(place, resolve_callable(entry), ("run",))
    if callable(settings.enabled) or is_callable_name(settings.enabled):
        yield from finder.callable("enabled", resolve_callable(settings.enabled), ("run",))
    if settings.messages and "messages" not in finder.assumed.switches:
        yield "messages", _left_out("messages of websockets are in no log", "messages")


def _of_limits(
    limit_set: LimitSet, prefix: str, limits: str, settings: Settings, finder: "_ProblemFinder"
) -> Iterator[tuple[str, str]]:
    """Yield the problems of one rule's limits, or of the global ones."""
    seen: set[str] = set()
    own_key = limit_set.rule is not None and limit_set.rule.key is not None
    for key in limit_set.keys:
        if key.text not in seen:
            seen.add(key.text)
            inherited = key.text == limit_set.key.text
            place = (f"{prefix}key" if own_key else "key") if inherited else f"{prefix}{limits}"
            yield from finder.key(place, key)
    if limit_set.tier is not None:
        own_tier = limit_set.rule is not None and limit_set.rule.tier is not None
        yield from finder.key(f"{prefix}tier" if own_tier else "tier", limit_set.tier)
    for setting, call in dict.fromkeys(limit_set.named_callables()):
        if setting in ("cost", "limits"):
            place = limits if setting == "limits" else setting
            yield from finder.callable(f"{prefix}{place}", call, ("run", "text:5"))
    yield from _of_responses(limit_set, prefix, settings, finder)


def _of_responses(
    limit_set: LimitSet, prefix: str, settings: Settings, finder: "_ProblemFinder"
) -> Iterator[tuple[str, str]]:
    """Yield the problems of settings that depend on a response: settlement and slots."""
    policy = limit_set.settle_policy
    assumed = finder.assumed
    if policy is not None and policy.call is not None and "settle" not in assumed.switches:
        own = limit_set.rule is not None and limit_set.rule.settle is not None
        fix = "; the estimate then stays charged"
        yield f"{prefix}settle" if own else "settle", _left_out("the true cost is in no log", "settle") + fix
    if policy is not None and policy.counted_statuses is not None and not (finder.log.has_status or assumed.status):
        yield f"{prefix}count_status", f"the log has no statuses; {_HOW} status=200"
    if limit_set.has_slots and "slots" not in assumed.switches:
        place = "limits" if limit_set.name == "default" and not settings.concurrent else "concurrent"
        if DURATION not in finder.log.names and assumed.duration is None:
            yield (
                f"{prefix}{place}",
                f"the log has no durations; {_HOW} duration=SECONDS, or slots=none to leave it out",
            )
        if limit_set.has_queue and "queue" not in assumed.switches:
            yield f"{prefix}queue", _left_out("a log does not tell who waited", "queue")


def _of_rule(place: str, rule: Rule, finder: "_ProblemFinder") -> Iterator[tuple[str, str]]:
    if rule.host:
        yield from finder.header(f"{place}.host", "header:host")
    if rule.when is not None:
        yield from finder.callable(f"{place}.when", resolve_callable(rule.when), ("run",))
    if rule.preflight:
        for name in _PREFLIGHT_HEADERS:
            yield from finder.header(f"{place}.preflight", f"header:{name}")
    if rule.messages and "messages" not in finder.assumed.switches:
        yield f"{place}.messages", _left_out("messages of websockets are in no log", "messages")


class _ProblemFinder:
    """Finds values that settings need, and that neither the log nor an assumption has.

    Each method yields problems, with the place of the setting that needs the value. `names`: the headers and cookies
    that the settings read. `has_callables`: whether they call a callable, which may read any header.
    """

    def __init__(self, log: LogFormat, assumed: Assumed) -> None:
        self.log: Final = log
        self.assumed: Final = assumed
        self.names: Final[set[str]] = set()
        self.has_callables = False

    def key(self, place: str, key: Key) -> Iterator[tuple[str, str]]:
        """Yield the problems of a key."""
        for name in sorted({*(f"header:{name}" for name in key.headers), *(f"cookie:{name}" for name in key.cookies)}):
            yield from self.header(place, name)
        for call in key.callables:
            yield from self.callable(place, call, ("run", "ip"))
        if key.requires_user and not self.log.has_user and self.assumed.user is None:
            yield place, f"got {key.text!r}, but the log has no users; {_HOW} user=ip"

    def header(self, place: str, name: str) -> Iterator[tuple[str, str]]:
        """Yield the problem of a header or cookie such as `header:x-api-key`, if there is one."""
        self.names.add(name)
        if not self.log.has_value(name) and not self.assumed.has(name):
            example = "text:app.example.com" if name == "header:host" else "ip"
            yield place, f"the log ({self.log.name}) does not have {name}; {_HOW} {name}={example}"

    def callable(self, place: str, call: RequestCallable, values: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the problem of a callable, if there is one. `values`: what can be assumed."""
        self.has_callables = True
        source = self.assumed.callables.get(call)
        if source is None:
            name = f"call:{getattr(call, '__module__', '')}:{getattr(call, '__qualname__', type(call).__qualname__)}"
            fixes = " or ".join(f"{name}={value}" for value in values)
            yield place, f"a log does not tell what {name} would return; assume it: --assume {fixes}"
        elif source.kind != "run" and values == ("run",):
            yield place, "only `run` can be assumed here, which calls it with the request as far as the log has it"


def _left_out(why: str, switch: str) -> str:
    return f"{why}; leave it out: --assume {switch}={_SWITCHES[switch]}"
