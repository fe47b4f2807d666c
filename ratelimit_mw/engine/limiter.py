"""Limits by hand, without any web request: in jobs, in clients, in tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import lru_cache
from typing import Any, Final, Self

from msgspec.structs import replace

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.identity import bucket_key, encode
from ratelimit_mw.core.limit import MOST_RECENT, Charge, Limit, check_name, check_seconds
from ratelimit_mw.core.signatures import check_parentheses
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, Verdict, verdict_of
from ratelimit_mw.engine.acquire import acquire, cancel_safe, limits_to_wait_for, refund_async
from ratelimit_mw.engine.decorator import DecoratorOptions, P, R, wrap, wrap_async
from ratelimit_mw.engine.runtime import run_to_completion
from ratelimit_mw.engine.slot_context import AsyncSingleUseContext, SingleUseContext, async_slot, slot
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.url import open_async_store, open_store

Limits = str | Limit | Iterable[str | Limit]  # notation, a Limit, or a sequence of either
Key = str | tuple[str, ...]
KeyOf = Key | Callable[..., Key] | None  # of a function: a key, or what gives one from the arguments of a call
CostOf = int | Callable[..., int]
Wait = bool | float  # whether a call waits for its turn, or for how many seconds at most

_ENDPOINTS: Final = "limits on web endpoints are `limit` of ratelimit_mw.fastapi, starlette, flask or django"
_ARGUMENTS_OF_HIT: Final = {
    **dict.fromkeys(("limits", "cost"), "into each call: hit(limits, key, cost)"),
    "key": f"into each call: hit(limits, key); {_ENDPOINTS}",
}
_ARGUMENTS_OF_ENDPOINTS: Final = dict.fromkeys(
    ("key_func", "key_function", "key_generator"), f"into `key`, called with the function's arguments; {_ENDPOINTS}"
)
_DEFAULT_STORE_TIMEOUT: Final = 1.0  # seconds: no web request waits, and a failing store is an error
_MAX_CACHED_RESERVATIONS: Final = 4096  # turns: made once, they cost a look-up instead of a hash


class _BaseLimiter:
    """What Limiter and AsyncLimiter share: everything but the asking."""

    def __init__(self, name: str) -> None:
        self._name: Final = check_name("name", name)
        # typed: a cost of True is none, and has to be found wrong
        self._cached_reservation: Final = lru_cache(_MAX_CACHED_RESERVATIONS, typed=True)(self._build_reservation)

    def _charges(self, limits: Limits, key: Key, cost: int) -> list[Charge]:
        bucket = self._key(key)
        return [Charge(bucket, limit, cost) for limit in as_limits(limits)]

    def _reservation_charges(self, limits: Limits, key: Key, cost: int, timeout: float | None) -> Sequence[Charge]:
        """What a turn takes."""
        if isinstance(limits, (str, Limit)):
            return self._cached_reservation(limits, key, cost, timeout)
        return self._build_reservation(limits, key, cost, timeout)

    def _build_reservation(self, limits: Limits, key: Key, cost: int, timeout: float | None) -> Sequence[Charge]:
        return self._charges(limits_to_wait_for(as_limits(limits), timeout), key, cost)

    def _settlements(self, limits: Limits, key: Key, delta: int) -> list[Charge]:
        if type(delta) is not int:
            raise ConfigError(f"delta: got {delta!r}, expected a whole number: more to take, below 0 to give back")
        bucket, at = self._key(key), MOST_RECENT if delta < 0 else None
        return [Charge(bucket, limit, delta, at=at) for limit in as_limits(limits)]

    def _slot_charges(self, limits: Limits, key: Key, cost: int) -> list[Charge]:
        charges = self._charges(limits, key, cost)
        if not any(charge.limit.is_concurrency for charge in charges):
            raise ConfigError("limits: got none of which a slot is held, expected a Concurrency among them")
        if not cost:
            raise ConfigError("cost: got 0, which takes no slot to hold; expected at least 1")
        return charges

    def _with_encoded_keys(self, charges: Sequence[Charge]) -> list[Charge]:
        for index, charge in enumerate(charges):
            if not isinstance(charge, Charge):
                raise ConfigError(f"charges[{index}]: got {charge!r:.100}, expected a Charge")
        return [replace(charge, key=self._key(charge.key)) for charge in charges]

    def _decorator_options(self, limits: Limits, key: KeyOf, cost: CostOf, wait: Wait) -> DecoratorOptions:
        # other errors name that place already
        with error_location("limits") if isinstance(limits, str) else nullcontext():
            limit_list = as_limits(limits)
        if wait is not False:
            limit_list = limits_to_wait_for(limit_list, None if wait is True else check_seconds("wait", wait))
        return DecoratorOptions(limit_list, key, cost, self._key)

    def _key(self, key: Key) -> str:
        parts = (key,) if isinstance(key, str) else key
        if not isinstance(parts, tuple) or not parts or not all(isinstance(part, str) and part for part in parts):
            raise ConfigError(f"key: got {key!r}, expected a string, or a tuple of strings, that is not empty")
        return bucket_key(encode([("key", part) for part in parts]), self._name)


class Limiter(_BaseLimiter):
    """Limits for threads. A failing store raises `StoreError`; wrong limits, keys and costs raise `ConfigError`.

    `store`: a Store, or a URL as in the settings: `redis://localhost:6379/0`; None is a `MemoryStore` of its own.
    `name`: part of every bucket's key, so that two limiters over one store with different names share nothing, and with
    the same name everything. `store_timeout`: seconds for a whole call of a store that a URL names; a store that is
    passed in has its own.

    A store that the limiter opened is closed by `close`, or at the end of a `with` block. It can be used again.
    """

    @check_arguments(elsewhere=_ARGUMENTS_OF_HIT)
    def __init__(
        self, store: Store | str | None = None, *, name: str = "default", store_timeout: float = _DEFAULT_STORE_TIMEOUT
    ) -> None:
        super().__init__(name)
        result = (
            open_store(*_url_and_timeout(store, store_timeout)) if store is None or isinstance(store, str) else store
        )
        self._owns_store: Final = result is not store
        if not isinstance(result, Store):
            raise ConfigError(
                f"store: {type(result).__name__} has no take(); expected a URL or a Store, and an AsyncStore goes "
                "with AsyncLimiter"
            )
        self.store: Final[Store] = result

    def close(self) -> None:
        """Close the store, if the limiter opened it."""
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        """Return the limiter, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def hit(self, limits: Limits, key: Key, cost: int = 1) -> Verdict:
        """Take `cost` units of each limit for `key`, all or nothing."""
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, self.store.take(charges))

    def peek(self, limits: Limits, key: Key, cost: int = 0) -> Verdict:
        """What is left; with a cost, exactly what `hit` would answer. Changes nothing."""
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, self.store.peek(charges))

    def take(self, *charges: Charge) -> Verdict:
        """Take several charges with keys of their own, all or nothing, in one step.

        Each key is encoded as `hit` does.
        """
        with_keys = self._with_encoded_keys(charges)
        return verdict_of(with_keys, self.store.take(with_keys))

    def acquire(self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None) -> Verdict:
        """Wait for the turn of `cost` units, and take them: first come, first served.

        The turn is reserved in one step, all or nothing; then the thread sleeps until it is due. `timeout`: seconds to
        wait at most; None is as long as it takes. Raises `RateLimited` at once, without having slept, where the turn
        would come later. Only limits with a `max_delay` hand out turns; `timeout` stands in for theirs. Windows beside
        them do not: where one has no room, `RateLimited` is raised at once. A `leaky_bucket` is a queue for `burst`
        units, and refuses what does not fit into it.

        What ends the sleep early, such as Ctrl-C, gives the units back; those who wait behind keep their turns. Raises
        `ConfigError` where no limit hands out turns, and for a `timeout` that is no number of seconds.
        """
        return acquire(self.store, self._reservation_charges(limits, key, cost, timeout), time.sleep)

    def turn(
        self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None
    ) -> AbstractContextManager[Verdict]:
        """`acquire` as a block that is entered when its turn comes: `with limiter.turn("10/second using gcra", "me"):`.

        What was taken stays taken, however the block ends. Raises `RuntimeError` where it is entered again.
        """
        return SingleUseContext(self._acquire_context(limits, key, cost, timeout), "turn")

    @contextmanager
    def _acquire_context(self, limits: Limits, key: Key, cost: int, timeout: float | None) -> Iterator[Verdict]:
        yield self.acquire(limits, key, cost, timeout)

    def settle(self, limits: Limits, key: Key, delta: int) -> None:
        """Correct what `key` took of these limits: take `delta` units more, though they may not fit, or give some back.

        `delta`: whole units; more than 0 are taken, up to one quota of debt; below 0 are given back, of those taken
        last, as far as they still count. Raises `ConfigError` for what is no whole number.
        """
        self.store.settle(self._settlements(limits, key, delta))

    def slot(self, limits: Limits, key: Key, cost: int = 1) -> AbstractContextManager[Verdict]:
        """Be at work: `with limiter.slot(Concurrency(20), "reports"):` raises `RateLimited` where 20 are already.

        `cost` slots are held until the block ends, however it does, and renewed meanwhile. Other limits beside a
        `Concurrency` are charged in the same step, all or nothing. Raises `ConfigError` where there is none, and for a
        cost of 0; `RuntimeError` where the same block is entered again.
        """
        return SingleUseContext(slot(self.store, self._slot_charges(limits, key, cost)), "slot")

    def reset(self, limits: Limits, key: Key) -> None:
        """Forget what `key` took of these limits."""
        self.store.reset(self._charges(limits, key, 0))

    @check_arguments(elsewhere=_ARGUMENTS_OF_ENDPOINTS)
    def limit(
        self, limits: Limits, *, key: KeyOf = None, cost: CostOf = 1, wait: Wait = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: each call of the function takes `cost` units of each limit, or raises `RateLimited`.

        It is for functions of jobs and clients, not for web endpoints: it knows no request, so without a `key` all
        clients of an endpoint share one bucket, and `RateLimited` becomes a 500. For endpoints use `limit` of
        `ratelimit_mw.fastapi`, `.starlette`, `.flask` or `.django`.

        `key`: whose bucket; a callable is given the arguments of the call, of a method `self` first; None is the
        function's module and name, one bucket for all who call it. `cost`: whole units, or a callable likewise. What
        such a callable raises goes to the caller, and so does `ConfigError` for an answer that is no key or no cost.
        `wait`: True lets each call wait its turn for as long as it takes, a number for so many seconds at most, as
        `acquire` does. False refuses at once, but where a limit itself holds back, the call sleeps for that long. Slots
        of a `Concurrency` are held until it returns; a call of which `cost` says 0 holds none. Of a generator the call
        is charged, not each item.

        Limits, a fixed key and a fixed cost are checked at once: raises `ConfigError` where one is wrong, where the
        cost can never pass, where one is to wait for windows alone, for an async function, and for a generator where a
        slot would be held.
        """
        check_parentheses(limits)
        options = self._decorator_options(limits, key, cost, wait)
        return lambda function: wrap(function, options, self.store)


class AsyncLimiter(_BaseLimiter):
    """The same for asyncio, over an AsyncStore or a URL. `aclose` and `async with` close what the limiter opened."""

    @check_arguments(elsewhere=_ARGUMENTS_OF_HIT)
    def __init__(
        self,
        store: AsyncStore | str | None = None,
        *,
        name: str = "default",
        store_timeout: float = _DEFAULT_STORE_TIMEOUT,
    ) -> None:
        super().__init__(name)
        result = (
            open_async_store(*_url_and_timeout(store, store_timeout))
            if store is None or isinstance(store, str)
            else store
        )
        self._owns_store: Final = result is not store
        if not isinstance(result, AsyncStore):
            raise ConfigError(
                f"store: {type(result).__name__} has no atake(); expected a URL or an AsyncStore, and a Store for "
                "threads goes with Limiter"
            )
        self.store: Final[AsyncStore] = result
        self._take: Final = cancel_safe(self.store, self.store.atake)

    async def aclose(self) -> None:
        """Close the store in this event loop, if the limiter opened it."""
        if self._owns_store:
            await self.store.aclose()

    async def __aenter__(self) -> Self:
        """Return the limiter, which is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `aclose`."""
        await self.aclose()

    async def hit(self, limits: Limits, key: Key, cost: int = 1) -> Verdict:
        """See `Limiter.hit`."""
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, await self.store.atake(charges))

    async def peek(self, limits: Limits, key: Key, cost: int = 0) -> Verdict:
        """See `Limiter.peek`."""
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, await self.store.apeek(charges))

    async def take(self, *charges: Charge) -> Verdict:
        """See `Limiter.take`."""
        with_keys = self._with_encoded_keys(charges)
        return verdict_of(with_keys, await self.store.atake(with_keys))

    async def acquire(
        self,
        limits: Limits,
        key: Key,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109  # it says what is asked for, and stops nothing that runs
    ) -> Verdict:
        """See `Limiter.acquire`. A task that is cancelled while it waits gives its units back."""
        charges = self._reservation_charges(limits, key, cost, timeout)
        # as `acquire_async`, of which the coroutine would be a tenth of what waiting costs
        verdict = verdict_of(charges, await self._take(charges))
        if not verdict.allowed:
            raise RateLimited(verdict)
        if delay := verdict.delay:
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                await run_to_completion(refund_async(self.store, verdict))
                raise
        return verdict

    def turn(
        self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Verdict]:
        """See `Limiter.turn`: `async with limiter.turn("10/second using gcra", "github"): ...`."""
        return AsyncSingleUseContext(self._acquire_context(limits, key, cost, timeout), "turn")

    @asynccontextmanager
    async def _acquire_context(
        self,
        limits: Limits,
        key: Key,
        cost: int,
        timeout: float | None,  # noqa: ASYNC109  # as of acquire
    ) -> AsyncIterator[Verdict]:
        yield await self.acquire(limits, key, cost, timeout)

    async def settle(self, limits: Limits, key: Key, delta: int) -> None:
        """See `Limiter.settle`."""
        await self.store.asettle(self._settlements(limits, key, delta))

    def slot(self, limits: Limits, key: Key, cost: int = 1) -> AbstractAsyncContextManager[Verdict]:
        """See `Limiter.slot`: `async with limiter.slot(...)`. A task that is cancelled in between holds nothing."""
        return AsyncSingleUseContext(async_slot(self.store, self._slot_charges(limits, key, cost)), "slot")

    async def reset(self, limits: Limits, key: Key) -> None:
        """See `Limiter.reset`."""
        await self.store.areset(self._charges(limits, key, 0))

    @check_arguments(elsewhere=_ARGUMENTS_OF_ENDPOINTS)
    def limit(
        self, limits: Limits, *, key: KeyOf = None, cost: CostOf = 1, wait: Wait = False
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """See `Limiter.limit`, for async functions: what is awaited is charged. `key` and `cost` are not async.

        Raises `ConfigError` for a function that is not async, and for an async generator, whose call nobody awaits.
        """
        check_parentheses(limits)
        options = self._decorator_options(limits, key, cost, wait)
        return lambda function: wrap_async(function, options, self.store, self._take)


def _url_and_timeout(url: str | None, timeout: float) -> tuple[str, float]:
    """A URL and seconds, for `open_store`. An empty URL is a mistake, and not the memory."""
    if not check_seconds("store_timeout", timeout):
        raise ConfigError("store_timeout: got 0, expected more than 0 seconds")
    return ("memory://" if url is None else url), timeout


def as_limits(limits: Limits) -> list[Limit]:
    """The limits that notation, a Limit, or a sequence of either stand for. Raises `ConfigError` when there is none."""
    if isinstance(limits, str):
        return _reject_duplicates(list(parse(limits)))
    if isinstance(limits, Limit):
        return [limits]
    if not isinstance(limits, Iterable):
        raise ConfigError(f"limits: got {limits!r}, expected text such as '100/minute', a Limit or a list of these")
    result: list[Limit] = []
    for index, item in enumerate(limits):
        try:
            result += as_limits(item) if isinstance(item, (str, Limit)) else parse(item)
        except ConfigError as error:
            raise error.with_prefix(f"limits[{index}]") from None
    if not result:
        raise ConfigError("limits: got none, expected at least one")
    with error_location("limits"):
        return _reject_duplicates(result)


def _reject_duplicates(limits: list[Limit]) -> list[Limit]:
    """The limits. Raises `ConfigError` for two that count in one bucket: each hit would count twice."""
    if len(limits) > 1 and len({limit.bucket for limit in limits}) < len(limits):
        buckets = [limit.bucket for limit in limits]
        duplicate = next(limit for limit in limits if buckets.count(limit.bucket) > 1)
        raise ConfigError(
            f"{duplicate.notation} is there twice, and would count each hit twice; give one of them a name"
        )
    return limits
