"""Writes states with fixed steps, as `formats/` keeps them for each format of the file and of Redis, and reads them.

`python tests/stores/state_formats.py redis://localhost:6379/15` writes the files of new formats. It changes no existing
one: these are the states that released versions wrote.
"""

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import astuple
from redis import Redis

from ratelimit_mw import (
    GCRA,
    CalendarWindow,
    Charge,
    Concurrency,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.takeover import KINDS, taking_over
from ratelimit_mw.stores.redis import RedisStore, commands
from ratelimit_mw.stores.sqlite import SQLiteStore, codec
from ratelimit_mw.stores.sqlite.room import STATES
from ratelimit_mw.testing import Clock

FILE_FORMAT, REDIS_FORMAT = codec.FORMAT, commands.FORMAT
FORMATS = Path(__file__).parent / "formats"
CODECS = ("msgpack", "text")
START = 10.0**9  # seconds
STEPS = ((0.0, 2), (25.0, 3), (21.25, 1), (0.000001, 8), (20.5, 2))  # seconds since the step before, and a cost

LIMITS: dict[str, Limit] = {
    "fixed_window": FixedWindow(10, 60),
    "sliding_window_counter": SlidingWindowCounter(10, 60),
    "sliding_window_counter, strict": SlidingWindowCounter(10, 60, strict=True),
    "sliding_window_counter, buckets": SlidingWindowCounter(10, 60, buckets=3),
    "sliding_window_log": SlidingWindowLog(10, 60),
    "token_bucket": TokenBucket(10, 60),
    "token_bucket, burst": TokenBucket(10, 60, burst=7),
    "leaky_bucket": LeakyBucket(10, 60),
    "leaky_bucket, max_delay": LeakyBucket(10, 60, max_delay=60),
    "gcra": GCRA(10, 60),
    "gcra, max_delay": GCRA(10, 60, max_delay=60),
    "smooth": Smooth(10, 60),
    "smooth, warmup": Smooth(10, 60, warmup=30),
    "concurrent": Concurrency(10),
    "ban": Ban(4, 60, ban=900),
    "calendar_window": CalendarWindow(10, "minute"),
}
LIMITS |= {
    f"{name}, used": taking_over(limit, "used", f"rule~{number}")
    for number, (name, limit) in enumerate(LIMITS.items(), 1)
    if type(limit) in KINDS
}

State = dict[str, Any]
"""A row of the file or a key of Redis, and the decision on a unit a second later: what a reader makes of the state."""


def take_steps(store: SQLiteStore | RedisStore, clock: Clock, limit: Limit) -> None:
    clock.now = START
    for seconds, cost in STEPS:
        clock.advance(seconds)
        store.take([Charge("k", limit, cost)])


def decision(store: SQLiteStore | RedisStore, clock: Clock, limit: Limit) -> Sequence[Any]:
    clock.now = START + sum(seconds for seconds, _ in STEPS) + 1
    return astuple(store.peek([Charge("k", limit)])[0])


def written_to_file() -> dict[str, State]:
    """Return the row of each limit."""
    clock, states = Clock(), {}
    with TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/limits.db", timeout=5)) as rows:
        path = Path(folder) / "limits.db"
        with closing(SQLiteStore(path, clock=clock, timeout=5, deny_cache=0)) as store:
            for name, limit in LIMITS.items():
                take_steps(store, clock, limit)
                ((key, state, expires),) = rows.execute(f"SELECT * FROM {STATES}").fetchall()
                shown = [key.hex(), state.hex(), expires]
                states[name] = {"written": shown, "decision": decision(store, clock, limit)}
                store.reset([Charge("k", limit)])
    return states


def read_from_file(states: dict[str, State]) -> dict[str, Sequence[Any]]:
    """Return the decision of each limit on its row."""
    clock = Clock()
    with TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/limits.db", isolation_level=None)) as rows:
        path = Path(folder) / "limits.db"
        with closing(SQLiteStore(path, clock=clock, timeout=5, deny_cache=0)) as store:
            for key, state, expires in (state["written"] for state in states.values()):
                rows.execute(
                    f"INSERT OR REPLACE INTO {STATES} VALUES (?, ?, ?)",
                    (bytes.fromhex(key), bytes.fromhex(state), expires),
                )
            return {name: decision(store, clock, LIMITS[name]) for name in states}


def redis_store(url: str, clock: Clock, codec: str) -> RedisStore:
    store = RedisStore(url, clock=clock, timeout=5, deny_cache=0)
    below: Any = store._store
    below._codec = codec
    return store


def written_to_redis(url: str, codec: str) -> dict[str, State]:
    """Return the key of each limit. Members of sorted sets are shown with their scores."""
    clock, states = Clock(), {}
    with closing(redis_store(url, clock, codec)) as store, Redis.from_url(url) as client:
        for name, limit in LIMITS.items():
            client.flushdb()
            take_steps(store, clock, limit)
            (key,) = client.keys()
            if client.type(key) == b"zset":
                value: Any = [[member.hex(), score] for member, score in client.zrange(key, 0, -1, withscores=True)]
            else:
                value = client.get(key).hex()
            states[name] = {"written": [key.hex(), value], "decision": decision(store, clock, limit)}
    return states


def read_from_redis(url: str, codec: str, states: dict[str, State]) -> dict[str, Sequence[Any]]:
    """Return the decision of each limit on its key."""
    clock, decisions = Clock(), {}
    with closing(redis_store(url, clock, codec)) as store, Redis.from_url(url) as client:
        for name, state in states.items():
            client.flushdb()
            key, value = state["written"]
            if isinstance(value, str):
                client.set(bytes.fromhex(key), bytes.fromhex(value))
            else:
                client.zadd(bytes.fromhex(key), {bytes.fromhex(member): score for member, score in value})
            decisions[name] = decision(store, clock, LIMITS[name])
    return decisions


def kept(kind: str, number: int | str) -> dict[str, State]:
    """Return the states of a format as JSON reads them; nothing for a format without a file."""
    path = FORMATS / f"{kind}_{number}.json"
    found: dict[str, State] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def as_json(states: dict[str, Any]) -> Any:
    """Return states as JSON reads them."""
    return json.loads(json.dumps(states))


def main(url: str) -> None:
    new: dict[str, Callable[[], dict[str, State]]] = {f"file_{FILE_FORMAT}": written_to_file}
    for one in CODECS:
        new[f"redis_{one}_{REDIS_FORMAT}"] = partial(written_to_redis, url, one)
    for name, write in new.items():
        path = FORMATS / f"{name}.json"
        if not path.exists():
            lines = (f"{json.dumps(name)}: {json.dumps(state)}" for name, state in write().items())
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
