"""Limits without middleware: the same tests for Limiter in threads and for AsyncLimiter in asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakeredis import FakeRedis, aioredis
from redis import Redis

from ratelimit_mw import (
    AsyncLimiter,
    Charge,
    ConfigError,
    Limiter,
    MemoryStore,
    SlidingWindowCounter,
    StoreError,
    TokenBucket,
    Verdict,
    parse,
)
from ratelimit_mw.core.identity import bucket_key, encode
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore

pytestmark = pytest.mark.one_redis


class Awaiting:
    """An AsyncLimiter with the methods of a Limiter: each call runs an event loop until it returns."""

    def __init__(self, store: Any = None, *, name: str = "default") -> None:
        self._limiter = AsyncLimiter(store, name=name)

    def hit(self, limits: Any, key: Any, cost: int = 1) -> Verdict:
        return asyncio.run(self._limiter.hit(limits, key, cost))

    def peek(self, limits: Any, key: Any, cost: int = 0) -> Verdict:
        return asyncio.run(self._limiter.peek(limits, key, cost))

    def take(self, *charges: Charge) -> Verdict:
        return asyncio.run(self._limiter.take(*charges))

    def reset(self, limits: Any, key: Any) -> None:
        asyncio.run(self._limiter.reset(limits, key))


Make = Callable[..., "Limiter | Awaiting"]


@pytest.fixture(params=[Limiter, Awaiting], ids=["threads", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a class that creates limiters, for threads or for asyncio. Stores in memory work with both."""
    made: Make = request.param
    return made


def test_hit_refuses_over_the_quota_and_admits_after_retry_after(make: Make) -> None:
    clock = Clock()
    limiter = make(MemoryStore(clock=clock))
    verdicts = [limiter.hit("2/10 seconds using token_bucket", "k") for _ in range(3)]
    assert [(verdict.allowed, verdict.remaining) for verdict in verdicts] == [(True, 1), (True, 0), (False, 0)]
    refused = verdicts[-1]
    assert (refused.limit, refused.retry_after, refused.next_after, refused.reset_after) == (2, 5.0, 5.0, 10.0)
    assert (refused.delay, refused.rule, refused.source) == (0.0, None, "store")
    clock.advance(5)
    assert limiter.hit("2/10 seconds using token_bucket", "k").allowed


def test_hit_charges_its_cost_to_all_limits_or_none(make: Make) -> None:
    limiter = make()
    assert limiter.hit("10/minute; 4/hour", "k", 3).remaining == 1
    verdict = limiter.hit("10/minute; 4/hour", "k", 3)
    assert (verdict.allowed, verdict.limit) == (False, 4)
    assert [decision.remaining for decision in verdict.decisions] == [7, 1]


def test_peek_returns_remaining_units_and_with_a_cost_the_decision_of_a_hit(make: Make) -> None:
    limiter = make(MemoryStore(clock=Clock()))
    limiter.hit("10/minute", "k", 4)
    assert (limiter.peek("10/minute", "k").allowed, limiter.peek("10/minute", "k").remaining) == (True, 6)
    for cost in (6, 7, 11):
        shown = limiter.peek("10/minute", "k", cost)
        assert shown == limiter.peek("10/minute", "k", cost)
        assert shown.allowed == (cost == 6)
    shown, taken = limiter.peek("10/minute", "k", 6), limiter.hit("10/minute", "k", 6)
    assert list(shown.decisions) == list(taken.decisions)
    assert limiter.hit("10/minute", "k", 11).retry_after == float("inf")


def test_reset_restores_the_quota_of_one_key(make: Make) -> None:
    limiter = make()
    for key in ("a", "b"):
        limiter.hit("10/minute; 5/hour", key, 5)
    limiter.reset("10/minute; 5/hour", "a")
    assert [limiter.peek("5/hour", key).remaining for key in ("a", "b")] == [5, 0]


def test_take_charges_several_keys_and_encodes_them_like_hit(make: Make) -> None:
    limiter = make()
    minute, hour = parse("10/minute; 100/hour")
    verdict = limiter.take(Charge("a", minute, 2), Charge("b", hour, 3), Charge("s", minute, 11, role="shadow"))
    assert (verdict.allowed, [decision.allowed for decision in verdict.decisions]) == (True, [True, True, False])
    assert [limiter.peek(limit, key).remaining for limit, key in ((minute, "a"), (hour, "b"))] == [8, 97]
    assert [charge.key for charge in verdict.charges[:1]] == [limiter.hit(minute, "a").charges[0].key]
    assert not limiter.take(Charge("a", minute, 8), Charge("b", hour)).allowed
    assert limiter.peek(hour, "b").remaining == 97


@pytest.mark.promise(1)
def test_each_call_makes_one_store_call(make: Make) -> None:
    store = RecordingStore()
    limiter = make(store)
    limiter.hit("1/minute; 2/hour; 3/day", "k")
    limiter.peek("1/minute; 2/hour", "k")
    limiter.take(Charge("a", TokenBucket(1, 1)), Charge("b", TokenBucket(1, 1)))
    limiter.reset("1/minute; 2/hour", "k")
    assert [(verb, len(charges)) for verb, charges in store.calls] == [
        ("take", 3),
        ("peek", 2),
        ("take", 2),
        ("reset", 2),
    ]


LIMITS: list[Any] = [
    "10/minute; 5/hour",
    ["10/minute", "5/hour"],
    ("10/minute; 5/hour",),
    [SlidingWindowCounter(10, 60), "5/hour"],
    parse("10/minute; 5/hour"),
    (limit for limit in [SlidingWindowCounter(10, 60), SlidingWindowCounter(5, 3600)]),
]


@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: type(limits).__name__)
def test_limits_may_be_text_limit_objects_or_sequences_of_them(limits: Any) -> None:
    assert [charge.limit for charge in Limiter().hit(limits, "k").charges] == list(parse("10/minute; 5/hour"))


def test_a_single_limit_object_is_accepted(make: Make) -> None:
    assert make().hit(TokenBucket(10, 60, burst=3), "k").remaining == 2


TWICE = "5/60s using sliding_window_counter appears twice, and would count each hit twice; give one of them a name"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("10/mfoo", "'10/mfoo': unknown period 'mfoo'"),
        (["5/hour", "10/mfoo"], "limits[1]: '10/mfoo': unknown period 'mfoo'"),
        (["5/hour", None], "limits[1]: got None, expected text"),
        (["5/hour", ["5/hour"]], "limits[1]: got ['5/hour'], expected text"),
        ([], "limits: got none, expected at least one"),
        ("5/minute; 5/minute", TWICE),
        (
            ["5/minute", "9/hour", SlidingWindowCounter(5, 60)],
            f"limits: {TWICE}",
        ),
        (5, "limits: got 5, expected text"),
        (None, "limits: got None, expected text"),
        (TokenBucket, "limits: got <class"),
    ],
)
def test_invalid_limits_raise_an_error_that_describes_the_mistake(make: Make, limits: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make().hit(limits, "k")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("key", ["", (), ("",), ("a", ""), None, 5, b"k", ["a"], ("a", 5)])
def test_invalid_keys_raise_a_config_error(make: Make, key: Any) -> None:
    for call in (make().hit, make().peek, make().reset):
        with pytest.raises(ConfigError, match=r"^key: got .*, expected a non-empty string, or a non-empty tuple"):
            call("10/minute", key)


@pytest.mark.parametrize("cost", [-1, 1.5, "1", None, True, 2**53])
def test_invalid_costs_raise_a_config_error(make: Make, cost: Any) -> None:
    for call in (make().hit, make().peek):
        with pytest.raises(ConfigError, match=r"^cost: got "):
            call("10/minute", "k", cost)


@pytest.mark.promise(10)
def test_different_keys_never_share_a_bucket(make: Make) -> None:
    limiter = make()
    keys: list[Any] = [
        "a",
        ("a", "b"),
        "a+b",
        ("a+b",),
        "a+key=b",
        "ab",
        ("b", "a"),
        ("a", "a"),
        "A",
        " a",
        "{a}",
        "a:default",
    ]
    for key in keys[:3] + keys[4:]:  # a string is equivalent to a tuple of one string
        assert limiter.hit("1/hour", key).allowed
    assert not limiter.hit("1/hour", keys[3]).allowed


@pytest.mark.promise(10)
def test_limiters_with_the_same_name_and_store_share_buckets(make: Make) -> None:
    store = MemoryStore()
    one, same, other = make(store, name="mail"), make(store, name="mail"), make(store)
    assert [limiter.hit("1/hour", "k").allowed for limiter in (one, same, other)] == [True, False, True]
    key = bucket_key(encode([("key", "k")]), "mail")
    assert one.peek("1/hour", "k").charges[0].key == key


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 65, None, 5])
def test_invalid_names_raise_a_config_error(make: Make, name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^name: got "):
        make(name=name)


def test_store_of_the_wrong_kind_raises_an_error_with_the_fix(redis_url: str) -> None:
    with Redis.from_url(redis_url, socket_timeout=0.01) as client:
        store: Any = RedisStore(client)
        with pytest.raises(ConfigError, match=r"store: RedisStore has no atake\(\); .* Store use Limiter$"):
            AsyncLimiter(store)
    store = AsyncRedisStore(redis_url, timeout=5)
    with pytest.raises(ConfigError, match=r"store: AsyncRedisStore has no take\(\); .* AsyncStore use AsyncLimiter$"):
        Limiter(store)
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigError, match=r"store: int has no a?take\(\); expected a URL or a"):
            kind(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "store: got no scheme; expected memory://, sqlite://"),
        ("hunter2", "store: got no scheme; expected memory://, sqlite://"),
        (":hunter2@h:1", "store: got no scheme; expected memory://, sqlite://"),
        ("localhost", "store: got no scheme, did you mean 'redis://localhost:6379/0'?; expected memory://"),
        ("localhost:6379", "store: got no scheme, did you mean 'redis://localhost:6379/0'?; expected memory://"),
        ("10.0.0.5:7000/2", "store: got no scheme, did you mean 'redis://10.0.0.5:7000/2'?; expected memory://"),
        ("/run/app/limits.db", "store: got no scheme, did you mean 'sqlite:///run/app/limits.db'?; expected"),
        ("/run/redis.sock", "store: got no scheme, did you mean 'unix:///run/redis.sock'?; expected"),
        ("memory", "store: got no scheme, did you mean 'memory://'?; expected"),
        (
            "valkeys://:hunter2@h",
            "store: got the scheme 'valkeys', did you mean 'rediss', also for Valkey?; expected memory",
        ),
        ("reddis://:hunter2@h", "store: got the scheme 'reddis', did you mean 'redis'?; expected memory://"),
        (
            "redis://:hunter2@h:port",
            "store: the URL cannot be read: the port is not a number from 0 to 65535, expected redis://USER:PASSWORD@",
        ),
        ("redis+cluster://:hunter2@h:1/3", "store: a cluster has database 0 only"),
        ("redis+sentinel://:hunter2@h:1", "store: the URL names no service, expected redis+sentinel://"),
    ],
)
def test_invalid_url_raises_an_error_without_the_password(kind: Any, url: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(url)
    assert str(caught.value).startswith(message)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("timeout", [0, -1, "1", None, True])
def test_invalid_timeouts_raise_a_config_error(kind: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"^store_timeout: got "):
        kind("redis://localhost", store_timeout=timeout)


def connections(url: str) -> int:
    """Return the number of clients of the server, without the connection of this function."""
    with Redis.from_url(url) as client:
        return len(client.client_list()) - 1


def eventually_none(url: str) -> bool:
    """Return whether all clients disconnect from the server within 20 seconds."""
    end = time.monotonic() + 20
    while connections(url):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_limiter_opens_and_closes_the_store_of_a_url(redis_url: str) -> None:
    with Limiter(redis_url, name="mail", store_timeout=5) as limiter:
        assert [limiter.hit("2/hour", "bob").allowed for _ in range(3)] == [True, True, False]
        assert connections(redis_url) == 1
    assert eventually_none(redis_url)
    assert not limiter.hit("2/hour", "bob").allowed  # a closed limiter connects again
    limiter.close()
    assert eventually_none(redis_url)
    with Limiter("memory://") as in_memory:
        assert in_memory.hit("2/hour", "bob").allowed


def test_async_limiter_opens_and_closes_the_store_of_a_url(redis_url: str) -> None:
    async def main() -> list[bool]:
        async with AsyncLimiter(redis_url, name="mail", store_timeout=5) as limiter:
            found = [(await limiter.hit("2/hour", "bob")).allowed for _ in range(3)]
            assert connections(redis_url) == 1
        found.append((await limiter.hit("2/hour", "bob")).allowed)
        await limiter.aclose()
        async with AsyncLimiter("memory://") as in_memory:
            assert (await in_memory.hit("2/hour", "bob")).allowed
        return found

    assert asyncio.run(main()) == [True, True, False, False]
    assert eventually_none(redis_url)


def test_limiters_do_not_close_a_store_passed_in(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    with Limiter(store) as limiter:
        limiter.hit("2/hour", "bob")
    assert connections(redis_url) == 1
    store.close()
    assert eventually_none(redis_url)

    async def main() -> None:
        store = AsyncRedisStore(redis_url, timeout=5)
        async with AsyncLimiter(store) as limiter:
            await limiter.hit("2/hour", "bob")
        assert connections(redis_url) == 1
        await store.aclose()

    asyncio.run(main())
    assert eventually_none(redis_url)


def test_connection_error_names_the_server_but_not_the_password() -> None:
    async def awaited() -> None:
        async with AsyncLimiter("redis://:hunter2@127.0.0.1:1/0") as limiter:
            await limiter.hit("2/hour", "bob")

    def plain() -> None:
        with Limiter("redis://:hunter2@127.0.0.1:1/0") as limiter:
            limiter.hit("2/hour", "bob")

    for call in (plain, lambda: asyncio.run(awaited())):
        with pytest.raises(StoreError, match=r"^cannot connect: .*127\.0\.0\.1:1\b") as caught:
            call()
        assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r}"


@pytest.mark.promise(8)
def test_store_errors_reach_the_caller(make: Make) -> None:
    store = RecordingStore()
    store.error = StoreError("down")
    limiter = make(store)
    for call in (limiter.hit, limiter.peek, limiter.reset):
        with pytest.raises(StoreError, match="down"):
            call("10/minute", "k")


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[Store]:
    store = RedisStore(redis_url, timeout=5)
    yield store
    store.close()


def test_limiter_works_with_redis(redis_store: Store) -> None:
    limiter = Limiter(redis_store)
    assert [limiter.hit("2/hour; 5/day", ("mail", "bob")).allowed for _ in range(3)] == [True, True, False]
    limiter.reset("2/hour", ("mail", "bob"))
    verdict = limiter.hit("2/hour; 5/day", ("mail", "bob"))
    assert [decision.remaining for decision in verdict.decisions] == [1, 2]


def test_async_limiter_works_with_fakeredis() -> None:
    async def main() -> list[bool]:
        limiter = AsyncLimiter(AsyncRedisStore(aioredis.FakeRedis(), timeout=5))
        return [(await limiter.hit("2/hour", "k")).allowed for _ in range(3)]

    assert asyncio.run(main()) == [True, True, False]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_limits_passed_as_the_store_raise_a_config_error(kind: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        kind("1/minute; 5/hour")
    assert str(caught.value) == (
        "store: got '1/minute; 5/hour', expected a URL; limits go into each call: hit(limits, key)"
    )


def test_charge_rejects_anything_but_one_limit() -> None:
    limits: Any = parse("1/minute")
    with pytest.raises(ConfigError) as caught:
        Charge("k", limits)
    assert str(caught.value) == (
        "limit: got a sequence of limits, expected one; parse returns a tuple: parse('1/minute')[0]"
    )
    for value, text in (("5/hour", "5/hour"), (5, "1/minute"), ((), "1/minute")):
        limit: Any = value
        with pytest.raises(ConfigError) as caught:
            Charge("k", limit)
        assert str(caught.value) == f"limit: got {value!r}, expected a Limit, such as parse({text!r})[0]"


@pytest.mark.parametrize(
    ("store", "client", "expected"),
    [
        (RedisStore, aioredis.FakeRedis(), "a URL or a redis.Redis for threads"),
        (AsyncRedisStore, FakeRedis(), "a URL or a redis.asyncio.Redis"),
        (AsyncRedisStore, 5, "a URL or a redis.asyncio.Redis"),
    ],
)
def test_client_of_the_wrong_kind_raises_an_error_that_names_its_type(store: Any, client: Any, expected: str) -> None:
    name = "int" if client == 5 else f"{type(client).__module__}.FakeRedis"
    with pytest.raises(ConfigError) as caught:
        store(client)
    assert str(caught.value) == f"client_or_url: got {name}, expected {expected}"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
@pytest.mark.parametrize(
    "url", ["redis://h/0?db=1&{}=3", "unix:///s?{}=3", "redis+cluster://h?{}=3", "redis+sentinel://h/limits?{}=3"]
)
def test_timeout_options_in_the_url_are_rejected(kind: Any, name: str, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(url.format(name))
    assert str(caught.value) == (
        f"store: the URL has {name}, which has no effect; set store_timeout, or timeout of the store, the seconds for "
        "a complete call"
    )


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("url", "part"),
    [
        (
            "redis://h?ssl=true",
            "the option 'ssl' is unknown or has a wrong value; for TLS, begin the URL with rediss://",
        ),
        ("redis://h/0?decode_responses=true&bogus=hunter2", "the option 'bogus' is unknown or has a wrong value"),
        ("redis://h?hunter2=x", "an option is unknown or has a wrong value"),
        ("redis+cluster://h?bogus=1", "the option 'bogus' is unknown or has a wrong value"),
        ("unix:///s?bogus=1", "the option 'bogus' is unknown or has a wrong value"),
        ("unix://", "it names no socket file, as unix:///run/redis.sock does"),
        ("unix:///", "it names no socket file, as unix:///run/redis.sock does"),
        ("unix:///run/", "it names no socket file, as unix:///run/redis.sock does"),
        ("unix://:hunter2@/?db=1", "it names no socket file, as unix:///run/redis.sock does"),
        ("unix://localhost", "the path of the socket file needs a '/' before it, as in unix:///run/redis.sock"),
        ("unix://run/redis.sock", "the path of the socket file needs a '/' before it, as in unix:///run/redis.sock"),
        ("unix://:hunter2@h/s", "the path of the socket file needs a '/' before it, as in unix:///run/redis.sock"),
        ("redis://:hun#ter2@h:1", "everything from '#' is cut off, so a password must have %23 in its place"),
        ("redis://:hun/ter2@h:1", "there is a '/' before '@', so a password must have %2F in its place"),
        ("redis://:hun?ter2@h:1", "there is a '?' before '@', so a password must have %3F in its place"),
        ("redis://:hunter2@h:hunter2", "the port is not a number from 0 to 65535"),
    ],
)
def test_error_for_an_invalid_url_names_the_invalid_part(kind: Any, url: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(url)
    scheme = "unix" if url.startswith("unix") else "redis"
    assert str(caught.value).startswith(f"store: the URL cannot be read: {part}, expected {scheme}://USER:PASSWORD@")
    assert "ter2" not in f"{caught.value!r} {caught.value.__context__!r}"
