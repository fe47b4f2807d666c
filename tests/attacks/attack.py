"""What an attack is, and what it is played against."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from attacks.wire import Line, Reply, Request, send, send_at_once

PROXY = "127.0.0.1"  # whom the app behind a proxy believes; all else that connects to it is a stranger
BESIDE = "127.0.0.66"


@dataclass(frozen=True)
class Seen:
    """What an attacker got: statuses in order, and how often he got text of his own where it does not belong."""

    statuses: list[int]
    forged: int = 0

    def __str__(self) -> str:
        """`3x200 5x429`."""
        shown = " ".join(f"{number}x{status}" for status, number in sorted(Counter(self.statuses).items()))
        return f"{shown}, {self.forged} forged" if self.forged else shown


@dataclass
class Served:
    """A running server: its port, and what it has printed so far."""

    port: int
    output: Callable[[], str]


@dataclass
class Target:
    """One app, served twice: without a proxy, and behind one on 127.0.0.1.

    `lacks`: routes that it cannot have. `exact`: by the names of attacks, what ours answers on this server, where its
    reader of requests makes a difference.
    """

    direct: Served
    behind: Served
    lacks: frozenset[str] = frozenset()
    exact: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: count(1))

    def address(self) -> str:
        """An address on this machine from which nobody has asked yet."""
        number = next(self._numbers)
        return f"127.77.{number >> 8}.{number & 255}"

    def client(self) -> str:
        """An address in the world that nobody has had yet; none of those for examples, which some do not believe."""
        number = next(self._numbers)
        return f"11.77.{number >> 8}.{number & 255}"

    def ask(self, source: str, method: str, target: str, *lines: Line) -> Reply:
        """Ask the app without a proxy."""
        return send(self.direct.port, Request(method, target, lines, source))

    def ask_all(self, requests: Sequence[Request]) -> list[Reply]:
        """Ask it all of these at once."""
        return send_at_once(self.direct.port, requests)

    def ask_behind(self, method: str, target: str, *lines: Line, source: str = PROXY) -> Reply:
        """Ask the app behind the proxy without going through it, or as it would ask."""
        return send(self.behind.port, Request(method, target, lines, source))

    def through(self, client: str, method: str, target: str, *lines: Line) -> Reply:
        """Ask as the proxy does that `client` sent these lines to: as nginx is usually told to write them."""
        claims = [value for name, value in lines if name.lower() == "x-forwarded-for"]
        others = [line for line in lines if line[0].lower() not in ("x-forwarded-for", "x-real-ip")]
        says = [("X-Forwarded-For", ", ".join([*claims, client])), ("X-Real-IP", client)]
        return self.ask_behind(method, target, *others, *says)


Play = Callable[[Target], Seen]


@dataclass(frozen=True)
class Attack:
    """One attack.

    `known`: who had it. `exact`: all statuses that ours answers. `most`, `least`: of anybody's app, how many requests
    may and must pass, and `passes` says with which statuses they do. `route`: what the app must have for it.
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
        """Whether what must hold does."""
        return self.least <= self.passed(seen) <= self.most and not seen.forged

    def passed(self, seen: Seen) -> int:
        """How many requests the app answered."""
        return sum(status in self.passes for status in seen.statuses)


def statuses(replies: Sequence[Reply]) -> list[int]:
    """Their statuses."""
    return [reply.status for reply in replies]
