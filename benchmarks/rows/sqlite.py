"""Rows of the SQLite store: processor time of a take, over that in memory, and over Redis with its server."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time_ns
from typing import Final

from benchmarks.lab import Lab, package
from benchmarks.rows.redis import sync_store
from benchmarks.runner import Batch, Contender, Race, Row
from ratelimit_mw import Charge, Limiter, MemoryStore, SlidingWindowCounter
from ratelimit_mw.stores import Store

_LIMIT: Final = SlidingWindowCounter(10**9, 24 * 3600.0)
_KEY: Final = "{198.51.100.7}:rule"
_NANOSECONDS: Final = 10**9  # per second


def _file_store(lab: Lab) -> Store:
    folder = lab.closing.enter_context(TemporaryDirectory())
    store: Store = package("ratelimit_mw.stores.sqlite").SQLiteStore(Path(folder) / "limits.db", timeout=5.0)
    lab.closing.callback(store.close)
    return store


def _cpu(call: Callable[[], bool], server: Callable[[], int] = lambda: 0) -> Contender:
    """Return a contender measured in processor time of this process plus that of `server`, in nanoseconds."""

    def batch(calls: int) -> Batch:
        started = process_time_ns() + server()
        admitted = sum(call() for _ in range(calls))
        return Batch(process_time_ns() + server() - started, admitted, calls - admitted)

    return batch


def _takes(store: Store) -> Callable[[], bool]:
    group = (Charge(_KEY, _LIMIT),)
    return lambda: store.take(group)[0].allowed


def _hits(store: Store) -> Callable[[], bool]:
    limiter = Limiter(store)
    return lambda: limiter.hit(_LIMIT, "198.51.100.7").allowed


def _redis(lab: Lab) -> Contender:
    client = package("redis").Redis.from_url(lab.redis_url())
    lab.closing.callback(client.close)

    def server() -> int:
        info = client.info("cpu")
        seconds: float = info["used_cpu_user"] + info["used_cpu_sys"]
        return round(seconds * _NANOSECONDS)

    return _cpu(_takes(sync_store(lab)), server)


ROWS: Final[list[Row]] = [
    Race(
        name="sqlite-take",
        what="processor time of a take in a file / in memory",
        ours=lambda lab: _cpu(_takes(_file_store(lab))),
        peer=lambda _: _cpu(_takes(MemoryStore())),
        target=8.0,
        calls=2000,
    ),
    Race(
        name="sqlite-hit",
        what="processor time of a Limiter's hit in a file / in memory",
        ours=lambda lab: _cpu(_hits(_file_store(lab))),
        peer=lambda _: _cpu(_hits(MemoryStore())),
        calls=2000,
    ),
    Race(
        name="sqlite-redis",
        what="processor time of a take in a file / over Redis, its server included",
        ours=lambda lab: _cpu(_takes(_file_store(lab))),
        peer=_redis,
        target=0.6,
        calls=2000,
    ),
]
