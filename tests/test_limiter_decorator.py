"""Limits on plain functions: `Limiter.limit` and `AsyncLimiter.limit`."""

import asyncio
import functools
import inspect
import math
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import pytest

from ratelimit_mw import (
    AsyncLimiter,
    ConfigError,
    LeakyBucket,
    Limiter,
    MemoryStore,
    RateLimited,
    StoreError,
    TokenBucket,
    Verdict,
    parse,
)
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore

pytestmark = pytest.mark.one_redis

LIMIT = "2/10 seconds using token_bucket"


def refusal(call: Callable[..., object], *args: Any, **kwargs: Any) -> Verdict:
    with pytest.raises(RateLimited) as caught:
        call(*args, **kwargs)
    return caught.value.verdict


class Awaiting:
    """An AsyncLimiter that limits plain functions: each call runs an event loop until it returns."""

    def __init__(self, store: Any = None, *, name: str = "default") -> None:
        self._limiter = AsyncLimiter(store, name=name)

    def limit(self, limits: Any, **terms: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            called = self._limiter.limit(limits, **terms)(awaited)
            return functools.wraps(function)(lambda *args, **kwargs: asyncio.run(called(*args, **kwargs)))

        return decorate

    def peek(self, limits: Any, key: Any) -> Verdict:
        return asyncio.run(self._limiter.peek(limits, key))


Make = Callable[..., Any]


@pytest.fixture(params=[Limiter, Awaiting], ids=["threads", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def send(user: str, copies: int = 1) -> str:
    """Send it."""
    return f"{copies} to {user}"


def test_calls_over_the_quota_are_refused_until_retry_after(make: Make) -> None:
    clock = Clock()
    limited = make(MemoryStore(clock=clock)).limit(LIMIT)(send)
    assert [limited("bob"), limited("eve", copies=2)] == ["1 to bob", "2 to eve"]
    verdict = refusal(limited, "bob")
    assert (verdict.allowed, verdict.limit, verdict.remaining, verdict.retry_after) == (False, 2, 0, 5.0)
    clock.advance(4.999999)
    assert refusal(limited, "bob").retry_after == 0.000001
    clock.advance(0.000001)
    assert limited("bob") == "1 to bob"


def test_refused_calls_do_not_run_the_function(make: Make) -> None:
    ran: list[int] = []
    append = make().limit("1/hour", key="k")(lambda number: ran.append(number))  # noqa: PLW0108  # a function, as apps decorate
    append(1)
    assert refusal(append, 2).allowed is False
    assert ran == [1]


def test_limited_function_keeps_name_docstring_and_signature() -> None:
    limited = Limiter().limit(LIMIT)(send)
    assert (limited.__name__, limited.__doc__, limited.__module__) == ("send", "Send it.", __name__)
    assert inspect.signature(limited) == inspect.signature(send)
    assert assert_type(limited("bob", copies=2), str) == "2 to bob"


def test_limited_async_function_stays_async() -> None:
    @AsyncLimiter().limit(LIMIT)
    async def fetch(page: int) -> int:
        return page + 1

    async def main() -> int:
        return assert_type(await fetch(page=1), int)

    assert inspect.iscoroutinefunction(fetch)
    assert str(inspect.signature(fetch)) == "(page: int) -> int"
    assert asyncio.run(main()) == 2


def test_without_a_key_all_callers_share_the_bucket_of_the_function(make: Make) -> None:
    limiter = make()
    limited = limiter.limit("3/hour")(send)
    limited("bob")
    limited("eve")
    assert limiter.peek("3/hour", (__name__, "send")).remaining == 1

    def other() -> None: ...

    assert limiter.limit("3/hour")(other)() is None
    assert limiter.peek("3/hour", (__name__, other.__qualname__)).remaining == 2


@pytest.mark.parametrize("key", ["mail", ("mail", "out")])
def test_functions_with_an_explicit_key_share_its_bucket(make: Make, key: Any) -> None:
    limiter = make()
    first, second = limiter.limit("3/hour", key=key)(send), limiter.limit("3/hour", key=key)(lambda: None)
    first("bob")
    second()
    assert limiter.peek("3/hour", key).remaining == 1


def test_key_and_cost_may_be_computed_from_the_arguments(make: Make) -> None:
    limiter = make()
    limited = limiter.limit("5/hour", key=lambda user, **_: ("mail", user), cost=lambda _, copies=1: copies)(send)
    assert [limited("bob", copies=3), limited("eve")] == ["3 to bob", "1 to eve"]
    assert [limiter.peek("5/hour", ("mail", user)).remaining for user in ("bob", "eve")] == [2, 4]
    assert refusal(limited, "bob", copies=3).remaining == 2
    assert refusal(limited, "bob", copies=6).retry_after == math.inf
    assert limited("bob", copies=0) == "0 to bob"


def test_limited_call_charges_all_limits_or_none_in_one_store_call(make: Make) -> None:
    store = RecordingStore()
    limited = make(store).limit("10/minute; 4/hour", cost=3)(send)
    limited("bob")
    assert [decision.remaining for decision in refusal(limited, "bob").decisions] == [7, 1]
    assert [(verb, [charge.cost for charge in charges]) for verb, charges in store.calls] == [("take", [3, 3])] * 2


def test_methods_can_be_limited_and_pass_self_to_the_key() -> None:
    limiter, asynchronous = Limiter(), AsyncLimiter()

    class Mail:
        def __init__(self, host: str) -> None:
            self.host = host

        @limiter.limit("1/hour", key=lambda self, **_: self.host)
        def send(self, text: str) -> str:
            return f"{self.host}: {text}"

        @classmethod
        @limiter.limit("1/hour")
        def count(cls) -> str:
            return cls.__name__

        @staticmethod
        @limiter.limit("1/hour")
        def zone() -> str:
            return "UTC"

        @asynchronous.limit("1/hour", key=lambda self: self.host)
        async def receive(self) -> str:
            return self.host

    one, other = Mail("one"), Mail("other")
    assert [assert_type(one.send(text="a"), str), other.send(text="b")] == ["one: a", "other: b"]
    assert refusal(one.send, text="c").limit == 1
    assert (Mail.count(), Mail.zone()) == ("Mail", "UTC")
    assert refusal(Mail("third").count).limit == refusal(Mail.zone).limit == 1
    assert asyncio.run(one.receive()) == "one"
    assert refusal(lambda: asyncio.run(one.receive())).limit == 1


def test_limit_charges_the_call_of_a_generator_function() -> None:
    @Limiter().limit("1/hour")
    def pages(count: int) -> Iterator[int]:
        yield from range(count)

    found = pages(3)
    assert refusal(pages, 3).limit == 1  # although the first generator has not started yet
    assert list(found) == [0, 1, 2]


def test_coroutine_that_is_not_awaited_is_not_charged() -> None:
    limiter = AsyncLimiter()

    @limiter.limit("1/hour")
    async def fetch() -> int:
        return 1

    fetch().close()
    assert asyncio.run(fetch()) == 1
    assert refusal(lambda: asyncio.run(fetch())).limit == 1


def test_delayed_calls_sleep_for_their_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def asleep(delay: float) -> None:
        slept.append(delay)

    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", slept.append)
    limit = LeakyBucket(1, 2, burst=3, max_delay=4)
    limited = Limiter(MemoryStore(clock=Clock())).limit(limit)(send)
    assert [limited("bob") for _ in range(3)] == ["1 to bob"] * 3
    assert (refusal(limited, "bob").retry_after, slept) == (2.0, [2.0, 4.0])
    monkeypatch.setattr("ratelimit_mw.engine.runtime.asyncio.sleep", asleep)
    awaited = Awaiting(MemoryStore(clock=Clock())).limit(limit)(send)
    assert [awaited("bob") for _ in range(3)] == ["1 to bob"] * 3
    assert (refusal(awaited, "bob").retry_after, slept) == (2.0, [2.0, 4.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"limits": "10/mfoo"}, "limits: '10/mfoo': unknown period 'mfoo'"),
        ({"limits": ["5/hour", "10/mfoo"]}, "limits[1]: '10/mfoo': unknown period 'mfoo'"),
        ({"limits": []}, "limits: got none, expected at least one"),
        ({"limits": send}, "limits: got <function send at "),  # @limiter.limit without parentheses
        ({"key": ""}, "key: got '', expected a non-empty string"),
        ({"key": ("a", 5)}, "key: got ('a', 5), expected a non-empty string"),
        ({"key": 5}, "key: got 5, expected a non-empty string"),
        ({"key": asyncio.sleep}, "key: got sleep, which is async; expected a plain function"),
        ({"cost": asyncio.sleep}, "cost: got sleep, which is async; expected a plain function"),
        ({"cost": -1}, "cost: got -1, expected a whole number from 0"),
        ({"cost": True}, "cost: got True, expected a whole number from 0"),
        ({"cost": "1"}, "cost: got '1', expected a whole number from 0"),
        ({"cost": 3}, f"cost: got 3, which never passes {parse(LIMIT)[0].notation!r}; expected at most 2"),
        (
            {"limits": [TokenBucket(10, 60, burst=2), "5/hour"], "cost": 3},
            "cost: got 3, which never passes '10/60s burst 2 using token_bucket'; expected at most 2",
        ),
    ],
)
def test_invalid_arguments_raise_before_a_function_is_decorated(terms: dict[str, Any], message: str) -> None:
    limiters: list[Any] = [Limiter(), AsyncLimiter()]
    for limiter in limiters:
        with pytest.raises(ConfigError) as caught:
            limiter.limit(**{"limits": LIMIT, **terms})
        assert str(caught.value).startswith(message)


async def afetch() -> None: ...


async def apages() -> AsyncIterator[int]:
    yield 1


class Callables:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("limiter", "function", "message"),
    [
        (Limiter(), afetch, "limit: got afetch, which is async, and Limiter .* AsyncLimiter; for web endpoints use"),
        (Limiter(), functools.partial(afetch), "limit: got partial, which is async"),
        (Limiter(), Callables(), "limit: got Callables, which is async"),
        (AsyncLimiter(), send, "limit: got send, which is not async .* use Limiter; for web endpoints use"),
        (Limiter(), apages, r"limit: got apages, an async generator function, .* await AsyncLimiter.hit\(\) in it$"),
        (AsyncLimiter(), apages, "limit: got apages, an async generator"),
        (Limiter(), Callables, "limit: got <class '.*Callables'>, expected a function"),
        (Limiter(), 5, "limit: got 5, expected a function"),
        (Limiter(), staticmethod(send), "limit: got a staticmethod, expected a function; put `limit` below it"),
        (Limiter(), classmethod(str), "limit: got a classmethod, expected a function"),
        (Limiter(), functools.partial(send), r"key: functools.partial\(.*\) has no name that could be its key"),
    ],
)
def test_decorating_an_unsupported_object_raises_a_config_error(limiter: Any, function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        limiter.limit(LIMIT)(function)


def test_partial_with_an_explicit_key_can_be_limited() -> None:
    limited = Limiter().limit("1/hour", key="mail")(functools.partial(send, "bob"))
    assert limited(copies=2) == "2 to bob"
    assert refusal(limited).limit == 1


async def nobody_awaits() -> str:
    return "k"


@pytest.mark.promise(9)
@pytest.mark.parametrize("nonsense", [None, "", 5, ["k"], (), ("k", None)])
def test_callable_that_returns_an_invalid_key_admits_no_call(make: Make, nonsense: Any) -> None:
    store = RecordingStore()
    limited = make(store).limit(LIMIT, key=lambda *_: nonsense)(send)
    with pytest.raises(ConfigError) as caught:
        limited("bob")
    assert str(caught.value) == (
        f"send.key: got {nonsense!r}, expected a non-empty string, or a non-empty tuple of them"
    )
    assert store.calls == []


@pytest.mark.promise(9)
@pytest.mark.parametrize("nonsense", [None, "1", 1.5, -1, True, 2**53])
def test_callable_that_returns_an_invalid_cost_admits_no_call(make: Make, nonsense: Any) -> None:
    store = RecordingStore()
    limited = make(store).limit(LIMIT, cost=lambda *_: nonsense)(send)
    with pytest.raises(ConfigError) as caught:
        limited("bob")
    assert str(caught.value) == (f"send.cost: got {nonsense!r}, expected a whole number from 0 to 9007199254740991")
    assert store.calls == []


@pytest.mark.promise(9)
def test_callable_that_raises_admits_no_call(make: Make) -> None:
    store = RecordingStore()
    for terms in ({"key": lambda user: user[9]}, {"cost": lambda user: user[9]}):
        with pytest.raises(IndexError):
            make(store).limit(LIMIT, **terms)(send)("bob")
    assert store.calls == []


@pytest.mark.promise(9)
def test_coroutine_as_a_key_raises_a_config_error(make: Make) -> None:  # and closes the coroutine without a warning
    with pytest.raises(ConfigError, match=r"^send.key: got <coroutine"):
        make().limit(LIMIT, key=lambda *_: nobody_awaits())(send)("bob")


@pytest.mark.promise(8)
def test_failing_store_admits_no_call(make: Make) -> None:
    store = RecordingStore()
    store.error = StoreError("down")
    with pytest.raises(StoreError, match="down"):
        make(store).limit(LIMIT)(send)("bob")


def test_rate_limited_error_survives_pickling() -> None:
    limited = Limiter(MemoryStore(clock=Clock())).limit(LIMIT, cost=2)(send)
    limited("bob")
    with pytest.raises(RateLimited) as caught:
        limited("bob")
    back = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # pickled by this test
    assert (type(back), str(back)) == (RateLimited, "rate limited: retry after 10.0 seconds")
    assert back.verdict == caught.value.verdict


def test_limited_function_works_with_redis(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    limited = Limiter(store).limit("2/hour; 5/day", key=lambda user: ("mail", user))(send)
    assert [limited("bob"), limited("bob"), limited("eve")] == ["1 to bob", "1 to bob", "1 to eve"]
    assert [decision.remaining for decision in refusal(limited, "bob").decisions] == [0, 3]
    store.close()


def test_limited_async_function_works_with_redis(redis_url: str) -> None:
    async def main() -> list[int]:
        store = AsyncRedisStore(redis_url, timeout=5)

        @AsyncLimiter(store).limit("2/hour", key=str)
        async def fetch(page: int) -> int:
            return page

        answers = [await fetch(page) for page in (1, 1, 2)]
        with pytest.raises(RateLimited) as caught:
            await fetch(1)
        await store.aclose()
        return [*answers, caught.value.verdict.remaining]

    assert asyncio.run(main()) == [1, 1, 2, 0]
