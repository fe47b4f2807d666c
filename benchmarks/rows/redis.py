"""Rows of the Redis stores on a server of the run: commands, as the server counts them, and the latency of a take."""

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import count, islice, repeat
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from benchmarks.lab import Lab, package
from benchmarks.ours.asgi import bare, requests
from benchmarks.runner import Batch, Contender, Count, Counted, Race, Row, Setup
from benchmarks.takes import takes
from ratelimit_mw import Charge, Limit, Limiter, TokenBucket
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis.scripts import encode_group, join_groups, read_decisions, script

_DAY: Final = 24 * 3600.0  # seconds
_PLENTY: Final = 10**9
_KEYS: Final = ("ip", "header:user-agent", "all")  # of the first, second and third limit of a request
_PATIENT: Final = 5.0  # seconds; long, so that a hiccup of the machine does not count as a failure of the store
_NAMES: Final = count()  # of the units in minimal logs


def _through_limiter(limits: int) -> Callable[[Lab, int], Counted]:
    def count(lab: Lab, calls: int) -> Counted:
        limiter = Limiter(sync_store(lab), name=f"bench-{limits}")
        charges = [Charge(key, TokenBucket(_PLENTY, _DAY)) for key in _KEYS[:limits]]
        limiter.take(*charges)  # opens the connection
        before = evalsha(lab)
        admitted = sum(limiter.take(*charges).allowed for _ in range(calls))
        return Counted(evalsha(lab).calls - before.calls, admitted, calls - admitted)

    return count


def _through_asgi(limits: int) -> Callable[[Lab, int], Counted]:
    def count(lab: Lab, calls: int) -> Counted:
        url = lab.redis_url()
        store = package("ratelimit_mw.stores.redis").AsyncRedisStore(url, timeout=_PATIENT)
        lab.closing.callback(lambda: lab.wait(store.aclose()))
        items = [{"limit": f"{_PLENTY}/day", "key": key} for key in _KEYS[:limits]]
        app = RateLimitMiddleware(bare, limits=items, store=store)
        lab.wait(requests(app, 1))  # opens the connection
        before = evalsha(lab)
        done = lab.wait(requests(app, calls))
        return Counted(evalsha(lab).calls - before.calls, done.admitted, done.refused)

    return count


def sync_store(lab: Lab, **options: Any) -> Store:
    """Return a store on the server of the run. It is closed at the end of the run."""
    url = lab.redis_url()
    store: Store = package("ratelimit_mw.stores.redis").RedisStore(url, timeout=_PATIENT, **options)
    lab.closing.callback(store.close)
    return store


class Evalsha(NamedTuple):
    """The server's statistics of EVALSHA calls since it started."""

    calls: int
    microseconds: int


def evalsha(lab: Lab) -> Evalsha:
    """Return the current statistics."""
    with package("redis").Redis.from_url(lab.redis_url()) as client:
        counts: dict[str, dict[str, int]] = client.info("commandstats")
    found = counts.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return Evalsha(found["calls"], found["usec"])


def ours(limit: Limit) -> Setup:
    """Set up takes of this limit, all with one key."""
    return lambda lab: takes(sync_store(lab), Charge("latency", limit))


def our_script(limit: Limit) -> Setup:
    """Set up the same calls as `ours`, but sent like those of the minimal scripts.

    The more a client does between two calls, the colder are the caches of a server on the same machine.
    """
    charges = [Charge("latency", limit)]
    arguments = join_groups("msgpack", 0, (encode_group("msgpack", charges),), commit=True)

    def admits(reply: Any) -> bool:
        return read_decisions(reply, len(charges))[0].allowed

    return _script(script("take", "msgpack").text, f"rl:1:latency:{limit.bucket}", repeat((arguments,)), admits)


def minimal_gcra(limit: Limit) -> Setup:
    """Set up EVALSHA of the smallest script for such a limit."""
    return _minimal("minimal_gcra", limit, repeat((str(limit.window_us / limit.quota), str(limit.window_us))))


def minimal_log(limit: Limit) -> Setup:
    """Set up EVALSHA of the smallest script for such a limit that keeps every unit."""
    return _minimal("minimal_log", limit, zip(repeat(limit.window_us), repeat(limit.quota), _NAMES))


def _minimal(name: str, limit: Limit, arguments: Iterator[tuple[object, ...]]) -> Setup:
    text = (files("benchmarks.rows") / f"{name}.lua").read_text("utf-8")
    key = f"{name}:{limit.bucket}"  # limits cannot read each other's states
    return _script(text, key, arguments, lambda reply: bool(reply[0]))


def _script(text: str, key: str, arguments: Iterator[tuple[object, ...]], admits: Callable[[Any], bool]) -> Setup:
    """Set up EVALSHA of this script with this key. `admits`: returns whether a reply admits the call."""

    def setup(lab: Lab) -> Contender:
        client: Any = lab.closing.enter_context(package("redis").Redis.from_url(lab.redis_url()))
        sha = client.script_load(text)

        def batch(calls: int) -> Batch:
            started = perf_counter_ns()
            replies = [client.evalsha(sha, 1, key, *each) for each in islice(arguments, calls)]
            took = perf_counter_ns() - started
            admitted = sum(map(admits, replies))
            return Batch(took, admitted, calls - admitted)

        return batch

    return setup


ROWS: Final[Sequence[Row]] = [
    *[
        Count(
            name="redis-evalsha",
            what=f"EVALSHA per {by}, {limits} limit{'s'[: limits - 1]}",
            count=through(limits),
            target=1.0,
            exact=True,
        )
        for by, through in (("Limiter.take", _through_limiter), ("ASGI request", _through_asgi))
        for limits in range(1, len(_KEYS) + 1)
    ],
    Race(
        name="redis-sync-1",
        what="one take, token bucket / bare EVALSHA, minimal GCRA",
        ours=ours(TokenBucket(_PLENTY, _DAY)),
        peer=minimal_gcra(TokenBucket(_PLENTY, _DAY)),
        calls=300,
    ),
]
