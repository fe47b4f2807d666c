"""Counts the decisions of a sample of clients, from which the dashboard shows what another limit would refuse.

A client is in the sample if the checksum of its key is low enough. So each process chooses the same clients, and each
client is there with all its requests. The bound falls when there are more clients, and rises again slowly.
"""

from collections import Counter, deque
from collections.abc import Iterable
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from ratelimit_mw.core.forks import after_fork_in_child
from ratelimit_mw.core.verdict import Verdict

ALL: Final = 1 << 32  # a bound above every checksum
MOST: Final = 16  # clients that a process reports each second
_HELD: Final = 8 * MOST  # clients between two reports
_RISE: Final = 1.02  # each second
_REMEMBERED: Final = 300  # seconds, as long as the sample is kept


def checksum(key: str) -> int:
    """Return the number by which clients are chosen. `key`: that of a charge, `{identity}:rule`."""
    return crc32(key.encode("utf-8", "surrogatepass"))


class Sample(NamedTuple):
    """The decisions of some clients. `counts`: admitted and refused, by the key of the charge.

    `below`: all clients whose checksum is below this bound were counted in the last five minutes. `shadowed`: requests
    by rule that a shadow limit would have refused, of all clients.
    """

    counts: dict[str, tuple[int, int]]
    below: int
    shadowed: Counter[str]


class ClientSample:
    """Collects a sample. `below`: the present bound; 0 while no page collects it, so that no client is below."""

    def __init__(self) -> None:
        self.below = 0
        self._reset()

    def _reset(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, list[int]] = {}
        self._shadowed = Counter[str]()
        self._bounds: deque[int] = deque(maxlen=_REMEMBERED)
        self.below = ALL if self.below else 0

    def start(self) -> None:
        """Collect from now on."""
        self.below = self.below or ALL

    def add(self, key: str, verdict: Verdict) -> None:
        """Count a decision for a client below the bound. `key`: that of its charge."""
        with self._lock:
            counts = self._counts.get(key)
            if counts is None:
                if len(self._counts) >= _HELD:
                    self._lower()
                counts = self._counts[key] = [0, 0]
            counts[not verdict.allowed] += 1

    def add_shadowed(self, keys: Iterable[str]) -> None:
        """Count a request for each rule whose shadow limit would have refused it. `keys`: of the charges."""
        if self.below:
            with self._lock:
                self._shadowed.update({key.rpartition("}:")[2] for key in keys})

    def drain(self) -> Sample:
        """Return the sample since the last call."""
        with self._lock:
            shadowed, self._shadowed = self._shadowed, Counter()
            if len(self._counts) > MOST:
                self._lower()
            counts = {key: (some[0], some[1]) for key, some in self._counts.items()}
            self._counts = {}
            self._bounds.append(self.below)
            below = min(self._bounds)
            self.below = min(ALL, int(self.below * _RISE) + 1)
        return Sample(counts, below, shadowed)

    def _lower(self) -> None:
        """Lower the bound, so that at most `MOST` of the clients are below."""
        numbers = {key: checksum(key) for key in self._counts}
        self.below = sorted(numbers.values())[MOST]
        self._counts = {key: some for key, some in self._counts.items() if numbers[key] < self.below}

    def forget(self) -> None:
        """Start again, and collect nothing. For tests, and in a forked child."""
        self.below = 0
        self._reset()


SAMPLE: Final = ClientSample()

after_fork_in_child(SAMPLE._reset)  # noqa: SLF001  # the same module
