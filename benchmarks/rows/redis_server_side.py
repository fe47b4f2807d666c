"""Rows of what a charge costs the Redis server with each algorithm: time, and bytes per key."""

import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.rows.redis import evalsha, minimal_gcra, minimal_log, our_script, sync_store
from benchmarks.runner import Batch, Contender, Count, Counted, Race, Row, Setup
from ratelimit_mw import CalendarWindow, Limit, Limiter
from ratelimit_mw.algorithms import ALGORITHMS, DEFAULT

_PLENTY: Final = (100_000, 1.0)  # the most that a log may keep, and more per second than one client can take
_USUAL: Final = (100, 60.0)
_KEEPS_ALL: Final = "sliding_window_log"
_SMALL: Final = ("gcra", "token_bucket")
_NOTED: Final = {DEFAULT.algorithm: " (the default)", _KEEPS_ALL: " (keeps every unit)"}
_TIMES: Final = {DEFAULT.algorithm: 1.6, "smooth": 2.1, _KEEPS_ALL: 2.4}  # the others: 1.5


def _by_server(setup: Setup) -> Setup:
    """Measure the contender by the server's own clock, which excludes the network and the client.

    The clock counts whole microseconds. The errors of many calls cancel out.
    """

    def timed(lab: Lab) -> Contender:
        contender = setup(lab)

        def batch(calls: int) -> Batch:
            before = evalsha(lab)
            done = contender(calls)
            after = evalsha(lab)
            assert after.calls - before.calls == calls
            return done._replace(nanoseconds=(after.microseconds - before.microseconds) * 1000)

        return batch

    return timed


def _key_bytes(name: str) -> Callable[[Lab, int], Counted]:
    def weigh(lab: Lab, calls: int) -> Counted:
        limit = ALGORITHMS[name](*_USUAL)
        # with an injected clock, states live an hour longer; otherwise the first may expire before the last is measured
        limiter = Limiter(sync_store(lab, clock=time.time))
        admitted = sum(limiter.hit(limit, str(IPv4Address(n))).allowed for n in range(calls))
        with package("redis").Redis.from_url(lab.redis_url()) as client:
            redis: Any = client
            keys = redis.keys(f"*:{limit.bucket}")
            assert len(keys) == calls
            return Counted(sum(redis.memory_usage(key, samples=0) for key in keys), admitted, calls - admitted)

    return weigh


def _plenty(algorithm: type[Limit]) -> Limit:
    quota, window = _PLENTY
    return algorithm(quota, 60.0 if algorithm is CalendarWindow else window)  # the shortest calendar period


ROWS: Final[Sequence[Row]] = [
    *[
        Race(
            name=f"lua-{name}",
            what=f"server time of a take{_NOTED.get(name, '')} / of the minimal GCRA",
            ours=_by_server(our_script(_plenty(algorithm))),
            peer=_by_server(minimal_gcra(_plenty(algorithm))),
            target=_TIMES.get(name, 1.5),
            calls=300,
        )
        for name, algorithm in ALGORITHMS.items()
    ],
    Race(
        name=f"lua-{_KEEPS_ALL}-by-log",
        what="server time of a take (keeps every unit) / of the minimal log",
        ours=_by_server(our_script(ALGORITHMS[_KEEPS_ALL](*_PLENTY))),
        peer=_by_server(minimal_log(ALGORITHMS[_KEEPS_ALL](*_PLENTY))),
        target=2.0,
        calls=300,
    ),
    Race(
        name="lua-minimal_log",
        what="server time of the minimal log (keeps every unit) / of the minimal GCRA",
        ours=_by_server(minimal_log(ALGORITHMS[_KEEPS_ALL](*_PLENTY))),
        peer=_by_server(minimal_gcra(ALGORITHMS[_KEEPS_ALL](*_PLENTY))),
        calls=300,
    ),
    *[
        Count(
            name=f"redis-bytes-{name}",
            what="MEMORY USAGE of an idle key, one charge of 100/60s",
            count=_key_bytes(name),
            unit="bytes",
            target=200.0 if name in _SMALL else None,
            calls=100,
        )
        for name in ALGORITHMS
    ],
]
