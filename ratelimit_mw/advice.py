"""What works, but hardly as it was meant: said in the log, once, with the fix."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import fields

from ratelimit_mw.limit import Limit
from ratelimit_mw.lines import Line, Lines
from ratelimit_mw.notices import logger
from ratelimit_mw.reach import out_of_reach
from ratelimit_mw.request import Request
from ratelimit_mw.rules import Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.vain import in_vain

_WINDOWS: Final = {"fixed_window": 2, "sliding_window_counter": 2, "sliding_window_log": 1}  # quotas in a worst window
_PROXY_HEADERS: Final = ("x-forwarded-for", "forwarded")
_LOOKED_AT: Final = 1000  # requests: headers are not read for nothing for ever
_SERVERS: Final = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_WORKERS: Final = re.compile(r"(?:--workers|-w)(?:=?([0-9]+))?")
_TESTS: Final = "testserver"  # Django's test client, which says that it is several processes
_DEEPEST: Final = 50  # apps around apps
_OF_SLOTS: Final = ("queue", "queue_timeout", "slot_lifetime", "slot_retry")


def advise(rules: Sequence[Rule], compiled: Sequence[Lines], messages: Sequence[Lines], *, ignore_case: bool) -> None:
    """Warn of rules that never match, and of limits of requests or messages that can be got around or never act."""
    for index, first in out_of_reach(rules, ignore_case=ignore_case):
        logger.warning(
            "ratelimit_mw: rules[%d] (%s) can never match: rules[%d] (%s) ends the search for all that it is for; "
            "put it before that one, or set final = false there",
            *(index, rules[index].full_name, first, rules[first].full_name),
        )
    held = any(lines.rule == "app" and _holds(lines) for lines in compiled)
    for lines in compiled:
        _advise(lines, "" if held and lines.rule != "app" else "add a limit with another key, or app_limits")
        for text in in_vain(lines, compiled):
            logger.warning("ratelimit_mw: rule %s: %s", lines.rule, text)
    for lines in messages:
        _advise(lines, "add a limit with another key")


def _advise(lines: Lines, fix: str) -> None:
    """`fix`: against keys that clients write; empty where another limit holds them."""
    keys = lines.keys
    if keys and all(key.forgeable for key in keys) and fix:
        logger.warning(
            "ratelimit_mw: rule %s: its key, %s, is what clients write, who can have as many of it as they like; %s",
            lines.rule,
            keys[0].text,
            fix,
        )
    if lines.tier is not None and lines.tier.forgeable:
        logger.warning(
            "ratelimit_mw: rule %s: its tier, %s, is what clients write, who can have any of them",
            lines.rule,
            lines.tier.text,
        )
    for idle, other in _idle(lines.fixed or ()):
        logger.warning(
            "ratelimit_mw: rule %s: %s never refuses what %s admits; remove it, or make it the smaller one",
            lines.rule,
            idle.policy.limit.notation,
            other.policy.limit.notation,
        )


def _holds(lines: Lines) -> bool:
    """Whether one of these limits refuses a client whatever he writes."""
    return any(not line.key.forgeable and not line.shadow for line in lines.known)


def _idle(lines: Sequence[Line]) -> Iterable[tuple[Line, Line]]:
    for line in lines:
        for other in lines:
            same = (line.key.text, line.key.calls, line.cost) == (other.key.text, other.key.calls, other.cost)
            alike = line is not other and same
            if alike and not other.shadow and _never_acts(line.policy.limit, other.policy.limit):
                yield line, other
                break


def _never_acts(limit: Limit, other: Limit) -> bool:
    """Whether `limit` certainly admits all that `other` admits."""
    warming = bool(getattr(limit, "warmup", 0))  # what is colder is dearer: a faster one is not always ahead
    if type(limit) is type(other) and limit.words == other.words and limit != other and not warming:
        options = [word for word in limit.words if word not in ("burst", "at_once")]
        alike = all(getattr(limit, word) == getattr(other, word) for word in options)
        if alike and limit.quota >= other.quota and limit.most >= other.most and limit.window <= other.window:
            return True
    if other.algorithm not in _WINDOWS or limit.algorithm not in _WINDOWS:
        return False
    at_once, rate = _WINDOWS[other.algorithm] * other.quota, other.quota / other.window
    return 2 * at_once + rate * limit.window <= limit.quota  # a counter may weigh an old window in full besides a new


def known_workers(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] | None = None) -> int:
    """How many processes a server was told to start, as far as its command line or WEB_CONCURRENCY says; else 1."""
    words = list(sys.argv if arguments is None else arguments)
    said = environ.get("WEB_CONCURRENCY", "")
    if words and any(name in words[0] for name in _SERVERS):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if found := _WORKERS.fullmatch(word):
                said = found[1] or following
    return int(said) if said.isdecimal() and int(said) > 0 else 1


def warn_of_workers(workers: int | None) -> None:
    """Warn that a memory store counts for one process alone. `workers` None: several."""
    logger.warning(
        "ratelimit_mw: store: memory:// counts in one process, and there are %s: clients get that many times "
        "the limits; set store to a redis:// URL",
        workers or "several",
    )


def warn_of_no_slots(settings: Settings, lines: Sequence[Lines]) -> None:
    """Warn of settings on slots where none of these lines has any, and endpoints cannot."""
    usual = {field.name: field.default for field in fields(settings)}
    idle = [word for word in _OF_SLOTS if getattr(settings, word) != usual[word]]
    if idle and not any(one.holds for one in lines):
        logger.warning(
            "ratelimit_mw: %s: nothing here limits how many requests are at work; set concurrent, or remove %s",
            ", ".join(idle),
            "it" if len(idle) == 1 else "them",
        )


class Processes:
    """Warns once where a WSGI server has several processes, and nothing else said so. `unknown`: it may still."""

    __slots__ = ("unknown",)

    def __init__(self, store: object) -> None:
        self.unknown = store == "memory://" and known_workers() == 1

    def look(self, environ: Mapping[str, Any]) -> None:
        """Warn if this request shows it. A server says the same each time: no other need be looked at."""
        if environ.get("SERVER_NAME") != _TESTS:
            self.unknown = False
            if environ.get("wsgi.multiprocess"):
                warn_of_workers(None)


class Unproxied:
    """Looks whether a proxy says who the client is, while none is trusted: then all clients of it share a bucket.

    `done`: it has warned, or seen enough requests that give no reason to.
    """

    __slots__ = ("_seen", "done")

    def __init__(self) -> None:
        self._seen = 0
        self.done = False

    def look(self, request: Request) -> None:
        """Warn at the first request that shows it."""
        self._seen += 1
        self.done = self._seen >= _LOOKED_AT
        for name in _PROXY_HEADERS:
            lines = request.header_lines(name)
            # a server that reads the header itself, as uvicorn does for a proxy on its host, has put it into `client`
            if lines and request.client is not None and not any(_names(line, request.client) for line in lines):
                self.done = True
                logger.warning(
                    "ratelimit_mw: trusted_proxies: %s is sent, but no proxy is trusted, so clients are counted by the "
                    "socket's address, %s; if that is your proxy, set trusted_proxies = [%r]",
                    name,
                    request.client,
                    request.client,
                )
                return


def _names(line: str, client: str) -> bool:
    return re.search(rf"(?<![0-9A-Fa-f:.]){re.escape(client)}(?![0-9A-Fa-f.])", line) is not None


def warn_of_cors(app: Any, outer: Any) -> None:
    """Warn where CORS middleware keeps browsers from reading our answers.

    `app`: the app inside; `outer`: the Starlette app outside, if any, whose middleware names its options.
    """
    for _ in range(_DEEPEST):
        if type(app).__name__ == "CORSMiddleware":
            logger.warning(
                "ratelimit_mw: CORSMiddleware stands inside of RateLimitMiddleware, so browsers cannot read a refusal; "
                "let it stand outside: with Starlette and FastAPI, add it after"
            )
            return
        app = getattr(app, "app", None)
    for middleware in getattr(outer, "user_middleware", ()):
        exposed = {str(name).lower() for name in getattr(middleware, "kwargs", {}).get("expose_headers", ())}
        if getattr(middleware.cls, "__name__", "") == "CORSMiddleware" and not exposed & {"*", "ratelimit"}:
            logger.warning(
                "ratelimit_mw: CORSMiddleware does not show our headers to scripts; give it "
                "expose_headers=['RateLimit', 'RateLimit-Policy', 'Retry-After']"
            )
            return
