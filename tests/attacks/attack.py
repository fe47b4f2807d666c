"""Defines attacks, and the servers that they are run against."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from attacks.wire import Line, Reply, Request, send, send_at_once

PROXY = "127.0.0.1"  # the trusted proxy; other addresses that connect to the app behind it are not trusted
BESIDE = "127.0.0.66"


@dataclass(frozen=True)
class Seen:
    """The result of an attack: statuses in order, and how often the attacker's text appeared where it must not."""

    statuses: list[int]
    forged: int = 0

    def __str__(self) -> str:
        """Return the counts of the statuses, such as `3x200 5x429`."""
        shown = " ".join(f"{number}x{status}" for status, number in sorted(Counter(self.statuses).items()))
        return f"{shown}, {self.forged} forged" if self.forged else shown


@dataclass
class Served:
    """A running server: its port, and a function that returns its output so far."""

    port: int
    output: Callable[[], str]


@dataclass
class Target:
    """An app that is served twice: without a proxy, and behind one on 127.0.0.1.

    `lacks`: routes that the app cannot have. `exact`: statuses of this package's app on this server, by the names of
    attacks whose result depends on the server's HTTP parser.
    """

    direct: Served
    behind: Served
    lacks: frozenset[str] = frozenset()
    exact: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: count(1))

    def address(self) -> str:
        """Return a loopback address that has sent no request yet."""
        number = next(self._numbers)
        return f"127.77.{number >> 8}.{number & 255}"

    def client(self) -> str:
        """Return an unused public address. Some libraries reject addresses that are reserved for documentation."""
        number = next(self._numbers)
        return f"11.77.{number >> 8}.{number & 255}"

    def ask(self, source: str, method: str, target: str, *lines: Line) -> Reply:
        """Send a request to the app without a proxy."""
        return send(self.direct.port, Request(method, target, lines, source))

    def ask_all(self, requests: Sequence[Request]) -> list[Reply]:
        """Send all requests to the app without a proxy at once."""
        return send_at_once(self.direct.port, requests)

    def ask_behind(self, method: str, target: str, *lines: Line, source: str = PROXY) -> Reply:
        """Send a request to the app behind the proxy: as the proxy, or from another `source`, bypassing it."""
        return send(self.behind.port, Request(method, target, lines, source))

    def through(self, client: str, method: str, target: str, *lines: Line) -> Reply:
        """Send a request as the proxy does after `client` sent it these lines, with the usual settings of nginx."""
        claims = [value for name, value in lines if name.lower() == "x-forwarded-for"]
        others = [line for line in lines if line[0].lower() not in ("x-forwarded-for", "x-real-ip")]
        says = [("X-Forwarded-For", ", ".join([*claims, client])), ("X-Real-IP", client)]
        return self.ask_behind(method, target, *others, *says)


Play = Callable[[Target], Seen]


@dataclass(frozen=True)
class Attack:
    """One attack.

    `known`: the source of the attack. `exact`: all statuses of this package's app. `most`, `least`: how many requests
    may and must pass in any app. `passes`: the statuses of requests that pass. `route`: the app must have it.
    """

    name: str
    known: str
    sends: str
    holds: str
    play: Play
    exact: Sequence[int]
    most: int
    least: int = 0
    passes: frozenset[int] = frozenset({200})
    route: str = ""

    def held(self, seen: Seen) -> bool:
        """Return whether the app withstood the attack."""
        return self.least <= self.passed(seen) <= self.most and not seen.forged

    def passed(self, seen: Seen) -> int:
        """Return how many requests passed."""
        return sum(status in self.passes for status in seen.statuses)


def statuses(replies: Sequence[Reply]) -> list[int]:
    """Return the statuses of replies."""
    return [reply.status for reply in replies]
