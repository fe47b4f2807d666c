"""Limiter and AsyncLimiter: rate limits without a web request, for jobs, clients and tests."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Final, Self

from msgspec.structs import replace

from ratelimit_mw.algorithms.notation import reject_limits
from ratelimit_mw.checks.decorators import USE_LIMIT, check_parentheses
from ratelimit_mw.checks.workers import warn_of_multiple_workers
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.identity import bucket_key, encode
from ratelimit_mw.core.limit import MOST_RECENT, Charge, Limit, check_name, check_seconds
from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict, verdict_of
from ratelimit_mw.engine.acquire import Reservation, SlotHolder, ThreadContext, Turn, acquire, with_timeout_as_max_delay
from ratelimit_mw.engine.decorator import DecoratorOptions, P, R, wrap, wrap_async
from ratelimit_mw.engine.limits_of_calls import Key, Limits, as_limits, check_key
from ratelimit_mw.engine.runtime import AsyncioRuntime, ThreadRuntime
from ratelimit_mw.stores import AsyncStore, Store, check_is_store
from ratelimit_mw.stores.url import open_async_store, open_store

KeyOf = Key | Callable[..., Key] | None  # for a decorated function; a callable computes it from a call's arguments
CostOf = int | Callable[..., int]
Wait = bool | float  # True: for as long as it takes; a number: at most so many seconds

_HINTS_FOR_INIT: Final = {
    **dict.fromkeys(("limits", "cost"), "into each call: hit(limits, key, cost)"),
    "key": f"into each call: hit(limits, key); {USE_LIMIT}",
    "app": "into RateLimiter(app) of ratelimit_mw.flask, or call app.add_middleware(RateLimitMiddleware)",
}
_HINTS_FOR_LIMIT: Final = {
    **dict.fromkeys(
        ("key_func", "key_function", "key_generator"), f"into `key`, called with the function's arguments; {USE_LIMIT}"
    ),
    **dict.fromkeys(
        ("methods", "per_method", "when", "exempt_when", "override_defaults", "scope", "error_message", "deduct_when"),
        "into `limit` of ratelimit_mw.fastapi, starlette, flask or django, which is for web endpoints",
    ),
}
_DEFAULT_STORE_TIMEOUT: Final = 1.0  # seconds; generous, because no web request waits
_MAX_CACHED_RESERVATIONS: Final = 4096  # a cached entry saves hashing the key and building the charges


class _BaseLimiter:
    """Base class of Limiter and AsyncLimiter: builds charges, and never queries the store."""

    def __init__(self, name: str) -> None:
        self._name: Final = check_name("name", name)
        # `typed`, because a cost of True is invalid and must not find the entry of a cost of 1
        self._cached_reservation: Final = lru_cache(_MAX_CACHED_RESERVATIONS, typed=True)(self._build_reservation)

    def _charges(self, limits: Limits, key: Key, cost: int) -> list[Charge]:
        encoded_key = self._encode_key(key)
        return [Charge(encoded_key, limit, cost) for limit in as_limits(limits)]

    def _reservation_charges(self, limits: Limits, key: Key, cost: int, timeout: float | None) -> Sequence[Charge]:
        """Return the charges that `acquire` takes. Cached, because building a limit takes longer than a decision."""
        limit_or_limits = limits if isinstance(limits, (str, Limit)) else tuple(as_limits(limits))
        try:
            return self._cached_reservation(limit_or_limits, key, cost, timeout)
        except TypeError:  # an argument without a hash, which is invalid
            return self._build_reservation(limit_or_limits, key, cost, timeout)

    def _build_reservation(self, limits: Limits, key: Key, cost: int, timeout: float | None) -> Sequence[Charge]:
        return self._charges(with_timeout_as_max_delay(as_limits(limits), timeout), key, cost)

    def _settlements(self, limits: Limits, key: Key, delta: int) -> list[Charge]:
        if type(delta) is not int:
            raise ConfigError(f"delta: got {delta!r}, expected a whole number, below 0 for a refund", code="RL-045")
        encoded_key, at = self._encode_key(key), MOST_RECENT if delta < 0 else None
        return [Charge(encoded_key, limit, delta, at=at) for limit in as_limits(limits)]

    def _units_to_reserve(self, limits: Limits, key: Key, cost: int) -> list[Charge]:
        charges = self._charges(limits, key, cost)
        if any(charge.limit.is_concurrency for charge in charges):
            raise ConfigError("limits: got a Concurrency, whose slots need slot() to be renewed", code="RL-078")
        return charges

    def _slot_charges(self, limits: Limits, key: Key, cost: int) -> list[Charge]:
        charges = self._charges(limits, key, cost)
        if not any(charge.limit.is_concurrency for charge in charges):
            raise ConfigError(
                "limits: got no Concurrency, expected at least one, because other limits have no slots", code="RL-021"
            )
        if not cost:
            raise ConfigError("cost: got 0, which takes no slot; expected at least 1", code="RL-017")
        return charges

    def _with_encoded_keys(self, charges: Sequence[Charge]) -> list[Charge]:
        for index, charge in enumerate(charges):
            if not isinstance(charge, Charge):
                raise ConfigError(f"charges[{index}]: got {charge!r:.100}, expected a Charge", code="RL-045")
        return [replace(charge, key=self._encode_key(charge.key)) for charge in charges]

    def _decorator_options(self, limits: Limits, key: KeyOf, cost: CostOf, wait: Wait) -> DecoratorOptions:
        # for a sequence, the errors contain the place already
        with error_location("limits") if isinstance(limits, str) else nullcontext():
            limit_list = as_limits(limits)
        if wait is not False:
            limit_list = with_timeout_as_max_delay(limit_list, None if wait is True else check_seconds("wait", wait))
        return DecoratorOptions(limit_list, key, cost, self._encode_key)

    def _encode_key(self, key: Key) -> str:
        return bucket_key(encode([("key", part) for part in check_key(key)]), self._name)


class Limiter(_BaseLimiter):
    """Rate limits for threads.

    `store`: a Store, or a URL as in the settings, such as `redis://localhost:6379/0`; None creates a `MemoryStore`.
    `name`: part of every bucket's key. Limiters over one store share buckets only if they have the same name.
    `store_timeout`: seconds for a whole call of a store that is opened from a URL. It does not apply to a store object,
    which has to limit its calls itself.

    The methods raise `StoreError` if the store fails, and `ConfigError` for invalid limits, keys and costs. `close`, or
    the end of a `with` block, closes a store that the limiter opened. The limiter can be used again afterwards.
    """

    @check_arguments(elsewhere=_HINTS_FOR_INIT)
    def __init__(
        self, store: Store | str | None = None, *, name: str = "default", store_timeout: float = _DEFAULT_STORE_TIMEOUT
    ) -> None:
        super().__init__(name)
        result = _opened(store, store_timeout, open_store)
        self._owns_store: Final = result is not store
        if not isinstance(result, Store):
            raise ConfigError(
                f"store: {type(result).__name__} has no take(); expected a URL or a Store; for an AsyncStore use "
                "AsyncLimiter",
                code="RL-040",
            )
        self.store: Final[Store] = result
        self._runtime: Final = ThreadRuntime(result)

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
        """Take `cost` units of each limit for `key`, all or nothing.

        Never sleeps. If a limit delays the call, the verdict's `delay` is the time that the caller should wait.
        `acquire` waits itself.
        """
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, self.store.take(charges))

    def peek(self, limits: Limits, key: Key, cost: int = 0) -> Verdict:
        """Return what is left. With a cost, return the verdict that `hit` would return. Changes nothing."""
        charges = self._charges(limits, key, cost)
        return verdict_of(charges, self.store.peek(charges))

    def take(self, *charges: Charge) -> Verdict:
        """Take several charges with keys of their own, all or nothing, in one step.

        Each key is encoded as in `hit`.
        """
        with_keys = self._with_encoded_keys(charges)
        return verdict_of(with_keys, self.store.take(with_keys))

    def acquire(self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None) -> Verdict:
        """Reserve `cost` units and sleep until they are due, first come, first served.

        The units are reserved in one step, all or nothing. `timeout`: the longest wait in seconds; None means as long
        as it takes. Raises `RateLimited` at once, without sleeping, if the wait would be longer. Only limits with a
        `max_delay` can delay a call; `timeout` replaces it. A window beside them raises `RateLimited` at once if it is
        exhausted. A `leaky_bucket` is a queue of `burst` units, and refuses units that do not fit into it.

        If the sleep ends early, for example by Ctrl-C, the units are refunded; later callers keep their due times.
        Raises `ConfigError` if no limit can delay, and if `timeout` is not a number of seconds.
        """
        return run(acquire(self._runtime, self._reservation_charges(limits, key, cost, timeout)))

    def turn(
        self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None
    ) -> AbstractContextManager[Verdict]:
        """Return `acquire` as a context manager: `with limiter.turn("10/second using gcra", "me"):`.

        The block starts when the units are due. They remain taken, even if the block raises. Raises `RuntimeError` on a
        second entry.
        """
        return ThreadContext(
            Turn(lambda: acquire(self._runtime, self._reservation_charges(limits, key, cost, timeout)))
        )

    def reserve(self, limits: Limits, key: Key, cost: int = 1) -> AbstractContextManager[Reservation]:
        """Return a context manager that takes an estimate: `with limiter.reserve("9/hour", "me", 5) as reservation:`.

        Entering it takes `cost` units as `acquire` does, and raises `RateLimited` if they are refused. At its end the
        units are corrected to `reservation.actual`, as by `settle`. Without it, the estimate stays taken if the block
        ends, and is refunded if the block raises. If the process dies, the estimate stays taken.
        """
        return ThreadContext(Reservation(self._runtime, self._units_to_reserve(limits, key, cost)))

    def settle(self, limits: Limits, key: Key, delta: int) -> None:
        """Correct what `key` took of these limits by `delta` units.

        `delta`: whole units. A positive delta takes units even if they do not fit, up to a debt of one quota. A
        negative delta refunds the units taken last, as far as they still count. Raises `ConfigError` if `delta` is not
        a whole number.
        """
        self.store.settle(self._settlements(limits, key, delta))

    def slot(self, limits: Limits, key: Key, cost: int = 1) -> AbstractContextManager[Verdict]:
        """Return a context manager that holds `cost` slots: `with limiter.slot(Concurrency(20), "reports"):`.

        Entering it raises `RateLimited` if the slots are not free (in the example: while 20 blocks run). The slots are
        renewed while the block runs, and released when it ends, even if it raises. Limits beside a `Concurrency` are
        charged in the same step, all or nothing. Raises `ConfigError` without a `Concurrency` and for a cost of 0, and
        `RuntimeError` on a second entry.
        """
        return ThreadContext(SlotHolder(self._runtime, self._slot_charges(limits, key, cost)))

    def reset(self, limits: Limits, key: Key) -> None:
        """Delete what the store keeps of these limits for `key`: all their units are free again."""
        self.store.reset(self._charges(limits, key, 0))

    @check_arguments(elsewhere=_HINTS_FOR_LIMIT)
    def limit(
        self, limits: Limits, *, key: KeyOf = None, cost: CostOf = 1, wait: Wait = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator: each call takes `cost` units of each limit, or raises `RateLimited`.

        It is for functions of jobs and clients, not for web endpoints: it has no request, so without a `key` all
        clients of an endpoint share one bucket, and `RateLimited` becomes a 500. For endpoints use `limit` of
        `ratelimit_mw.fastapi`, `.starlette`, `.flask` or `.django`. A warning names an endpoint without a `key`.

        `key`: the bucket's key, or a callable that receives the arguments of the call (`self` first for a method). None
        means the function's module and name: one bucket for all calls. `cost`: whole units, or a callable with the same
        arguments. If such a callable raises, or returns an invalid key or cost (`ConfigError`), the caller receives the
        exception. `wait`: with True, each call waits for its units as long as it takes; with a number, at most so many
        seconds. See `acquire`. With False, a call is refused at once if its units are not free; it sleeps only for the
        delay of a limit with a `max_delay`. Slots of a `Concurrency` are held until the function returns; a call whose
        `cost` is 0 holds none. A generator function is charged for each call, not for each item.

        Limits, a fixed key and a fixed cost are checked at decoration time. Raises `ConfigError` if one of them is
        invalid, if the cost can never pass, or if `wait` is set but no limit can delay. Also raises it for an async
        function, and for a generator function with slots.
        """
        check_parentheses(limits)
        options = self._decorator_options(limits, key, cost, wait)
        return lambda function: wrap(function, options, self._runtime)


class AsyncLimiter(_BaseLimiter):
    """Rate limits for asyncio; see `Limiter`. `store`: an AsyncStore or a URL.

    `aclose`, or the end of an `async with` block, closes a store that the limiter opened.
    """

    @check_arguments(elsewhere=_HINTS_FOR_INIT)
    def __init__(
        self,
        store: AsyncStore | str | None = None,
        *,
        name: str = "default",
        store_timeout: float = _DEFAULT_STORE_TIMEOUT,
    ) -> None:
        super().__init__(name)
        result = _opened(store, store_timeout, open_async_store)
        self._owns_store: Final = result is not store
        if not isinstance(result, AsyncStore):
            raise ConfigError(
                f"store: {type(result).__name__} has no atake(); expected a URL or an AsyncStore; for a Store use "
                "Limiter",
                code="RL-040",
            )
        self.store: Final[AsyncStore] = result
        self._runtime: Final = AsyncioRuntime(result)

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
        timeout: float | None = None,  # noqa: ASYNC109  # the longest wait, not a deadline that cancels
    ) -> Verdict:
        """See `Limiter.acquire`. Canceling the task while it waits refunds its units."""
        return await acquire(self._runtime, self._reservation_charges(limits, key, cost, timeout))

    def turn(
        self, limits: Limits, key: Key, cost: int = 1, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Verdict]:
        """See `Limiter.turn`: `async with limiter.turn("10/second using gcra", "github"): ...`."""
        return Turn(lambda: acquire(self._runtime, self._reservation_charges(limits, key, cost, timeout)))

    def reserve(self, limits: Limits, key: Key, cost: int = 1) -> AbstractAsyncContextManager[Reservation]:
        """See `Limiter.reserve`. Canceling the task counts as an error of the block."""
        return Reservation(self._runtime, self._units_to_reserve(limits, key, cost))

    async def settle(self, limits: Limits, key: Key, delta: int) -> None:
        """See `Limiter.settle`."""
        await self.store.asettle(self._settlements(limits, key, delta))

    def slot(self, limits: Limits, key: Key, cost: int = 1) -> AbstractAsyncContextManager[Verdict]:
        """See `Limiter.slot`: `async with limiter.slot(...)`. A canceled task holds no slots."""
        return SlotHolder(self._runtime, self._slot_charges(limits, key, cost))

    async def reset(self, limits: Limits, key: Key) -> None:
        """See `Limiter.reset`."""
        await self.store.areset(self._charges(limits, key, 0))

    @check_arguments(elsewhere=_HINTS_FOR_LIMIT)
    def limit(
        self, limits: Limits, *, key: KeyOf = None, cost: CostOf = 1, wait: Wait = False
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Return a decorator for async functions; see `Limiter.limit`. `key` and `cost` must not be async.

        A call is charged when it is awaited. Raises `ConfigError` for a function that is not async, and for an async
        generator function, whose calls are never awaited.
        """
        check_parentheses(limits)
        options = self._decorator_options(limits, key, cost, wait)
        return lambda function: wrap_async(function, options, self._runtime)


def _opened(store: object, timeout: float, open_url: Callable[[str, float], object]) -> object:
    """Return this store, or the one that `open_url` opens by a URL. None means memory; an empty URL is an error."""
    if store is not None and not isinstance(store, str):
        check_is_store(store)
        return store
    if not check_seconds("store_timeout", timeout):
        raise ConfigError("store_timeout: got 0, expected more than 0 seconds", code="RL-004")
    url = "memory://" if store is None else store
    reject_limits("store", url, "a URL; limits go into each call: hit(limits, key)")
    warn_of_multiple_workers(url)
    return open_url(url, timeout)
