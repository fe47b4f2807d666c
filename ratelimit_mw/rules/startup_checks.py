"""Startup checks for settings that work, but probably not as intended. Each finding includes the fix."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from msgspec.structs import fields

from ratelimit_mw.core.limit import Limit
from ratelimit_mw.core.log import Finding, logger, warn_or_fail
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.compiled import CompiledLimit, LimitSet
from ratelimit_mw.rules.no_effect import no_effect_findings
from ratelimit_mw.rules.unreachable import exempted_rules, exempting_all, unknown_methods, unreachable_rules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import NOT_BY_TIER
from ratelimit_mw.settings.rule import Rule

_MAX_QUOTAS: Final = {"fixed_window": 2, "sliding_window_counter": 2, "sliding_window_log": 1}  # in any window
_PROXY_HEADERS: Final = ("x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip")
_MAX_REQUESTS: Final = 1000  # requests that are examined: the check costs time
_MIN_PUBLIC_REQUESTS: Final = 100  # from public addresses: any client can send such a header, a proxy always does
_SERVERS: Final = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_WORKERS: Final = re.compile(r"(?:--workers|-w)(?:=?([0-9]+))?")
_DJANGO_TEST_SERVER: Final = "testserver"  # the name of Django's test client, which sets wsgi.multiprocess
_LONG_TIMEOUT: Final = 5.0  # seconds; a larger store_timeout was probably meant in milliseconds
_MAX_DEPTH: Final = 50  # nested apps
_SLOT_OPTIONS: Final = ("queue", "queue_timeout", "slot_lifetime", "slot_retry")


def startup_findings(
    rules: Sequence[Rule], compiled: Sequence[LimitSet], messages: Sequence[LimitSet], *, ignore_case: bool
) -> Iterator[Finding]:
    """Yield a finding for each rule that never matches and each limit that has no effect or that clients can avoid.

    `compiled`: all limits of requests; `app_limits` come first, the default limits last.
    """
    for index, first in unreachable_rules(rules, ignore_case=ignore_case):
        yield Finding(
            f"rules[{index}] ({rules[index].full_name}) can never match: rules[{first}] ({rules[first].full_name}) "
            "is final and matches all of its requests; put it before that one, or set final = false there"
        )
    settings = compiled[0].settings
    yield from _exempt_findings(rules, settings)
    default = compiled[-1]
    if (default.fixed_limits is None or default.fixed_limits) and (wide := exempting_all(rules)) is not None:
        yield Finding(
            f"limits: rules[{wide}] ({rules[wide].full_name}) exempts every path, so the default limits never apply; "
            "give that rule only the exempt paths, or set limits = []"
        )
    for rule in rules:
        yield from _method_findings(rule, f"rule {rule.full_name}")
    is_enforced = any(limit_set.name == "app" and _always_enforced(limit_set) for limit_set in compiled)
    for limit_set in compiled:
        yield from _rule_findings(
            limit_set, "" if is_enforced and limit_set.name != "app" else "add a limit with another key, or app_limits"
        )
        yield from no_effect_findings(limit_set, compiled)
    for limit_set in messages:
        yield from _rule_findings(limit_set, "add a limit with another key")
    if settings.store_timeout > _LONG_TIMEOUT:
        yield Finding(
            f"store_timeout: got {settings.store_timeout:g}, which is in seconds: while the store does not answer, a "
            "request waits that long; write milliseconds as a fraction, such as 0.05 for 50 milliseconds",
            weakens_limits=False,
        )
    options = [option for option in ("tier", "default_tier") if getattr(settings, option) is not None]
    if options and not any(limit_set.tier for limit_set in (*compiled, *messages)):
        yield Finding(f"{', '.join(options)}: {NOT_BY_TIER}")
    if settings.proxy_header.lower() != _PROXY_HEADERS[0] and not settings.trusted_proxies:
        yield Finding(
            f"proxy_header: {settings.proxy_header} is never read, because trusted_proxies is empty, so clients are "
            "counted by the socket's address; put your proxies into trusted_proxies, or remove proxy_header"
        )


class EndpointLimitChecks:
    """Checks endpoint limits as `startup_findings` checks rules, once each, when they are compiled.

    Findings are warnings even with `strict`, because the app is running. `app`: the limits of every request.
    """

    __slots__ = ("_app", "_seen")

    def __init__(self, app: LimitSet) -> None:
        self._app: Final = app
        self._seen: Final[set[str]] = set()

    def examine(self, limit_sets: Iterable[LimitSet]) -> None:
        """Warn about the limits of one endpoint."""
        every = list(limit_sets)
        is_enforced = any(map(_always_enforced, (self._app, *every)))
        for limit_set in every:
            if limit_set.bucket in self._seen or limit_set.rule is None:
                continue
            self._seen.add(limit_set.bucket)
            place = f"@limit {limit_set.name}"
            findings = [
                *_method_findings(limit_set.rule, place),
                *_limit_findings(limit_set, "" if is_enforced else "add a limit with another key", place),
            ]
            warn_or_fail(findings, strict=False)


def _exempt_findings(rules: Sequence[Rule], settings: Settings) -> Iterator[Finding]:
    for index in exempted_rules(rules, settings.exempt, ignore_case=settings.ignore_case):
        if index is None:
            yield Finding("exempt: it has every path, so nothing is limited; list only the exempt paths")
        else:
            yield Finding(
                f"rules[{index}] ({rules[index].full_name}) can never match: exempt has all of its paths; remove the "
                "rule, or take them out of exempt"
            )


def _method_findings(rule: Rule, place: str) -> Iterator[Finding]:
    for method, hint in unknown_methods(rule.methods):
        text = f"{place}: methods has {method}, which no server knows"
        # a method without a hint may be a custom method, which is allowed
        yield Finding(f"{text}; {hint or 'if clients do not send it, remove it'}", weakens_limits=hint is not None)


def _limit_findings(limit_set: LimitSet, fix: str, place: str) -> Iterator[Finding]:
    """Yield findings on keys and costs. `fix`: for keys that clients choose; empty if another limit covers these."""
    keys = limit_set.keys
    if keys and all(key.is_client_controlled for key in keys) and fix:
        yield Finding(
            f"{place}: its key, {keys[0].text}, is written by the client, which can use a new one for each request; "
            f"{fix}"
        )
    else:
        yield from _missing_key_findings(limit_set, place)
    if limit_set.tier is not None and limit_set.tier.is_client_controlled:
        yield Finding(f"{place}: its tier, {limit_set.tier.text}, is written by the client, which can choose any tier")
    if any(limit.cost == 0 for limit in limit_set.known_limits if not limit.is_penalty):
        yield Finding(
            f"{place}: a limit with cost = 0 is never charged and never refuses; give it a cost of at least 1"
        )


def _missing_key_findings(limit_set: LimitSet, place: str) -> Iterator[Finding]:
    """Yield a finding for each key that clients can leave out: all clients without it share one bucket."""
    if limit_set.settings.missing_key != "shared":
        return
    fallback_keys = [limit_set.key] if limit_set.fixed_limits is None and limit_set.tier is None else []
    keys = [*fallback_keys, *(one.key for one in limit_set.known_limits if not one.is_penalty and not one.shadow)]
    for text in dict.fromkeys(key.text for key in keys if key.needs_header):
        yield Finding(
            f"{place}: all clients without {text} share one bucket of its limit, so one of them can use it up for the "
            f"others; set the key to {text} | ip, or set missing_key to exempt or deny",
            weakens_limits=False,
        )


def _rule_findings(limit_set: LimitSet, fix: str) -> Iterator[Finding]:
    """Yield findings on the limits of one rule. `fix`: see `_limit_findings`."""
    yield from _limit_findings(limit_set, fix, f"rule {limit_set.name}")
    for idle, other in _redundant_limits(limit_set.fixed_limits or ()):
        yield Finding(
            f"rule {limit_set.name}: {idle.policy.limit.notation} never refuses what {other.policy.limit.notation} "
            "admits; remove it, or make it the smaller one",
            weakens_limits=False,
        )


def _always_enforced(limit_set: LimitSet) -> bool:
    """Return whether at least one of these limits applies whatever the client sends."""
    return any(not limit.key.is_client_controlled and not limit.shadow for limit in limit_set.known_limits)


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
    if other.algorithm not in _MAX_QUOTAS or limit.algorithm not in _MAX_QUOTAS:
        return False
    at_once, rate = _MAX_QUOTAS[other.algorithm] * other.quota, other.quota / other.window
    return 2 * at_once + rate * limit.window <= limit.quota  # a counter may add the whole last window to the new one


def configured_workers(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] | None = None) -> int:
    """Return the number of processes that the server is configured to start; 1 if it is unknown.

    It is read from the server that runs this code (gunicorn, uvicorn), else from its command line,
    `GUNICORN_CMD_ARGS` or `WEB_CONCURRENCY`.
    """
    running_workers = _running_workers()
    if running_workers is not None:
        return running_workers
    arguments_given = list(sys.argv if arguments is None else arguments)
    count = environ.get("WEB_CONCURRENCY", "")
    if arguments_given and any(name in arguments_given[0] for name in _SERVERS):
        if "gunicorn" in arguments_given[0]:
            with suppress(ValueError):  # an unclosed quote: gunicorn reports it
                count = _workers_option(shlex.split(environ.get("GUNICORN_CMD_ARGS", ""))) or count
        count = _workers_option(arguments_given) or count
    return int(count) if count.isdecimal() and int(count) > 0 else 1


def _workers_option(arguments: Sequence[str]) -> str:
    """Return the last value of `-w` or `--workers` on a command line, or empty text."""
    value = ""
    for argument, next_argument in zip(arguments, [*arguments[1:], ""], strict=True):
        if found := _WORKERS.fullmatch(argument):
            value = found[1] or next_argument
    return value


def _running_workers() -> int | None:
    """Return the number of workers of gunicorn or uvicorn, if one of their calls is on the stack of this thread.

    Both load the app, and run its event loop, inside such a call. The number includes `gunicorn.conf.py` and
    `uvicorn.run(workers=...)`, which no command line shows. Imports neither server.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # finds the server's call
    while frame is not None:
        module = frame.f_globals.get("__name__")
        workers: object = None
        if module == "gunicorn.arbiter":
            workers = getattr(getattr(frame.f_locals.get("self"), "cfg", None), "workers", None)
        elif module == "uvicorn._subprocess":
            config = frame.f_locals.get("config")
            # uvicorn ignores `workers` while it reloads
            workers = 1 if getattr(config, "should_reload", False) else getattr(config, "workers", None)
        if isinstance(workers, int):
            return max(workers, 1)
        frame = frame.f_back
    return None


def multiple_workers_finding(workers: int | None) -> Finding:
    """Return the finding that each process has its own memory store. `workers`: None if the number is unknown."""
    return Finding(
        f"store: memory:// counts in one process, and there are {workers or 'several'}: clients get that many times "
        "the limits; set store to a redis:// URL"
    )


def warn_of_unused_slot_options(settings: Settings, limit_sets: Sequence[LimitSet]) -> None:
    """Report options of slots if none of these limits has slots, and endpoint limits cannot have them."""
    defaults = {field.name: field.default for field in fields(settings)}
    unused = [option for option in _SLOT_OPTIONS if getattr(settings, option) != defaults[option]]
    if unused and not any(limit_set.has_slots for limit_set in limit_sets):
        pronoun = "it" if len(unused) == 1 else "them"
        text = f"no limit here has concurrency slots; set concurrent, or remove {pronoun}"
        warn_or_fail([Finding(f"{', '.join(unused)}: {text}")], strict=settings.strict)


class ProcessCountCheck:
    """Warns once if a WSGI server has several processes, and `configured_workers` did not find them.

    `unknown`: no request has shown it yet, so the next one is examined. Therefore it is a warning even with `strict`.
    """

    __slots__ = ("unknown",)

    def __init__(self, store: object) -> None:
        self.unknown = store == "memory://" and configured_workers() == 1

    def examine(self, environ: Mapping[str, Any]) -> None:
        """Warn if this request shows several processes. All requests show the same, so one is enough."""
        if environ.get("SERVER_NAME") != _DJANGO_TEST_SERVER:
            self.unknown = False
            if environ.get("wsgi.multiprocess"):
                warn_or_fail([multiple_workers_finding(None)], strict=False)


class ProxyHeaderCheck:
    """Looks in the first requests for a proxy whose header is not read: all of its clients share one bucket.

    Either the proxy is not in `trusted_proxies`, or it sends another header than `proxy_header`. `done`: it has warned,
    or has examined enough requests. Only requests show it, so it is a warning even with `strict`.
    """

    __slots__ = ("_finder", "_names", "_public_requests", "_seen", "done")

    def __init__(self, finder: ClientIPResolver) -> None:
        self._finder = finder
        self._names = tuple(dict.fromkeys((finder.header, *_PROXY_HEADERS)))
        self._seen = self._public_requests = 0
        self.done = False

    def examine(self, request: Request) -> None:
        """Warn at the first request that shows such a proxy. `request.client` is the socket's peer."""
        self._seen += 1
        if self.done:  # another gate of the same app shares this object
            return
        self.done = self._seen >= _MAX_REQUESTS
        sent = {name: values for name in self._names if (values := request.header_lines(name))}
        peer = request.client or ""
        trusted = self._finder.trusts(peer)
        if not sent or (trusted and self._finder.header in sent):
            return
        # a server may have read the header into `client` already, as uvicorn does for a proxy on its host
        if peer and any(_mentions(value, peer) for values in sent.values() for value in values):
            return
        address = parse_address(peer)
        if address is not None and address.is_global:
            self._public_requests += 1
            if self._public_requests < _MIN_PUBLIC_REQUESTS:
                return
        self.done = True
        name, shown = next(iter(sent)), str(address or peer or "a unix socket")
        if trusted:
            logger.warning(
                "ratelimit_mw: proxy_header: %s sends %s, but no %s, so all clients behind it are counted as one; if "
                "it is your proxy, and it writes that header itself, set proxy_header = %r",
                *(shown, name, self._finder.header, name),
            )
            return
        # trusted_proxies cannot contain a name, which waitress passes for a unix socket
        listed = str(address) if address else "" if peer else "unix:"
        fix = f"put {listed!r} into trusted_proxies" if listed else "set trusted_proxies = 1"
        if name != self._finder.header:
            fix += f", and set proxy_header = {name!r} if it writes that header itself"
        logger.warning(
            "ratelimit_mw: trusted_proxies: %s sends %s, but is not trusted, so all clients behind it are counted as "
            "one; if it is your proxy, %s",
            *(shown, name, fix),
        )


def _mentions(value: str, client: str) -> bool:
    return re.search(rf"(?<![0-9A-Fa-f:.]){re.escape(client)}(?![0-9A-Fa-f.])", value) is not None


def warn_of_cors(app: Any, outer: Any) -> None:
    """Warn if CORS middleware prevents browsers from reading refusals or the rate limit headers.

    `app`: the wrapped app. `outer`: the Starlette app around the middleware, if any; it knows the options of CORS.
    """
    if any(_is_named(kind, "CORSMiddleware") for kind in _nested_classes(app)):
        _warn_of_headers(
            "CORSMiddleware is inside RateLimitMiddleware, so browsers cannot read a refusal; put it outside: with "
            "Starlette and FastAPI, add it after RateLimitMiddleware"
        )
        return
    for middleware in getattr(outer, "user_middleware", ()):
        exposed = {str(name).lower() for name in getattr(middleware, "kwargs", {}).get("expose_headers", ())}
        if getattr(middleware.cls, "__name__", "") == "CORSMiddleware" and not exposed & {"*", "ratelimit"}:
            _warn_of_headers(
                "CORSMiddleware does not expose the rate limit headers to scripts; give it "
                "expose_headers=['RateLimit', 'RateLimit-Policy', 'Retry-After']"
            )
            return


def _warn_of_headers(text: str) -> None:
    warn_or_fail([Finding(text, weakens_limits=False)], strict=False)


def warn_of_authentication(app: Any, keys: Iterable[Key], *, strict: bool) -> None:
    """Report a key that reads the user if the wrapped app authenticates users only later."""
    key = next((key for key in keys if key.may_read_user), None)
    if key is not None and any(_is_named(kind, "AuthenticationMiddleware") for kind in _nested_classes(app)):
        finding = Finding(
            "AuthenticationMiddleware is inside RateLimitMiddleware, so no user is known where the key, "
            f"{key.text}, is read, and no client is counted by its user; put AuthenticationMiddleware outside (with "
            "Starlette and FastAPI, add it after RateLimitMiddleware), or leave user out of the key"
        )
        warn_or_fail([finding], strict=strict)


def _nested_classes(app: Any) -> Iterator[object]:
    """Yield the classes of an app, of the apps that it wraps, and of their middleware."""
    for _ in range(_MAX_DEPTH):
        yield type(app)
        yield from (getattr(one, "cls", None) for one in getattr(app, "user_middleware", ()))
        app = getattr(app, "app", None)


def _is_named(kind: object, name: str) -> bool:
    """Return whether `kind` is a class of this name, or a subclass of one."""
    return any(one.__name__ == name for one in getattr(kind, "__mro__", ()))
