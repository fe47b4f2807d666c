"""Wraps plain functions for the `limit` decorators of Limiter and AsyncLimiter."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, isasyncgenfunction, iscoroutine, isgeneratorfunction
from typing import Any, Final, ParamSpec, TypeVar

from ratelimit_mw.checks.decorators import USE_LIMIT, reject_registered
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.signatures import accepts, callable_name, is_async, parameters_of, reject_async
from ratelimit_mw.engine.acquire import SlotHolder, ThreadContext, acquire
from ratelimit_mw.engine.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")
ChargeFactory = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Charge]]
"""Returns the charges of a call with these positional and keyword arguments."""


class DecoratorOptions:
    """Options of a `limit` decorator, checked at decoration time.

    `key`: a key, a callable that returns one, or None for the name of the function. `encode_key`: returns the encoded
    form of a key. Raises `ConfigError` for an invalid one. `has_slots`: a call takes slots, which are held until it
    returns.
    """

    def __init__(self, limits: Sequence[Limit], key: Any, cost: Any, encode_key: Callable[[Any], str]) -> None:
        self._limits, self.key, self._cost, self._encode_key = limits, key, cost, encode_key
        self.has_slots: Final = any(limit.is_concurrency for limit in limits)
        for name, value in (("key", key), ("cost", cost)):
            if callable(value):
                with error_location(name):
                    reject_async(value)
        if key is not None and not callable(key):
            encode_key(key)
        if not callable(cost):
            for limit in limits:
                Charge("key", limit, cost)
                if limit.is_concurrency and not cost:
                    raise ConfigError(
                        f"cost: got 0, which takes no slot of {limit.notation!r}; expected at least 1", code="RL-017"
                    )
                if cost > limit.most and limit.quota:
                    raise ConfigError(
                        f"cost: got {cost}, which never passes {limit.notation!r}; expected at most {limit.most}",
                        code="RL-017",
                    )

    def charges_for(self, function: Callable[..., Any]) -> ChargeFactory:
        """Return the charge factory of this function. A fixed key and cost are encoded only once."""
        key, cost = self.key, self._cost
        for name, value in (("key", key), ("cost", cost)):
            if callable(value):
                with error_location(name):
                    _check_accepts_arguments(value, function)
        if key is None:
            key = _default_key(function)
        if not callable(key) and not callable(cost):
            fixed = self._charges(key, cost)
            return lambda _args, _kwargs: fixed

        def charges_for(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Charge]:
            key_now = _evaluate(key, args, kwargs) if callable(key) else key
            cost_now = _evaluate(cost, args, kwargs) if callable(cost) else cost
            try:
                return self._charges(key_now, cost_now)
            except ConfigError as error:
                raise error.with_prefix(callable_name(function)) from None

        return charges_for

    def _charges(self, key: Any, cost: Any) -> Sequence[Charge]:
        encoded_key = self._encode_key(key)
        return [Charge(encoded_key, limit, cost) for limit in self._limits]


def wrap(function: Callable[P, R], options: DecoratorOptions, runtime: Runtime) -> Callable[P, R]:
    """Wrap a function so that each call is charged, for threads. Raises `ConfigError` if it is async."""
    _check_function(function)
    reject_registered(function)
    if is_async(function):
        raise ConfigError(
            f"limit: got {callable_name(function)}, which is async, and Limiter would block its event loop; "
            f"expected a plain function; for an async one use AsyncLimiter; {USE_LIMIT}",
            code="RL-046",
        )
    charges_for = options.charges_for(function)
    if options.has_slots and isgeneratorfunction(function):
        raise ConfigError(
            f"limit: got {callable_name(function)}, a generator function, whose call returns before its body "
            "runs; use `with limiter.slot(...)` in it",
            code="RL-046",
        )

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        charges = charges_for(args, kwargs)
        if not options.has_slots:
            run(acquire(runtime, charges))
            return function(*args, **kwargs)
        with ThreadContext(SlotHolder(runtime, charges)):
            return function(*args, **kwargs)

    return call


def wrap_async(
    function: Callable[P, Coroutine[Any, Any, R]], options: DecoratorOptions, runtime: Runtime
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Wrap an async function so that each awaited call is charged. Raises `ConfigError` if it is not async."""
    _check_function(function)
    reject_registered(function)
    if not is_async(function):
        raise ConfigError(
            f"limit: got {callable_name(function)}, which is not async and cannot await the store; "
            f"expected an async function; for a plain one use Limiter; {USE_LIMIT}",
            code="RL-046",
        )
    charges_for = options.charges_for(function)

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        charges = charges_for(args, kwargs)
        if not options.has_slots:
            await acquire(runtime, charges)
            return await function(*args, **kwargs)
        async with SlotHolder(runtime, charges):
            return await function(*args, **kwargs)

    return call


def _check_function(function: object) -> None:
    """Raise `ConfigError` unless this is a function that runs when it is called or awaited."""
    if isinstance(function, (classmethod, staticmethod)):
        raise ConfigError(
            f"limit: got a {type(function).__name__}, expected a function; put `limit` below it", code="RL-046"
        )
    if isinstance(function, type) or not callable(function):  # wrapping a class would turn it into a function
        raise ConfigError(f"limit: got {function!r:.100}, expected a function", code="RL-046")
    if isasyncgenfunction(function):
        raise ConfigError(
            f"limit: got {callable_name(function)}, an async generator function, whose calls are never "
            "awaited; await AsyncLimiter.hit() in it",
            code="RL-046",
        )


def _default_key(function: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise ConfigError(f"key: {function!r:.100} has no name that could be its key; pass `key`", code="RL-046")
    return module, name


def _evaluate(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = call(*args, **kwargs)
    if iscoroutine(result):
        result.close()  # prevents the warning "never awaited"; the caller rejects it as a key or cost
    return result


def _check_accepts_arguments(call: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Raise `ConfigError` unless `call` accepts the arguments of some call of `function`."""
    parameters = parameters_of(function)
    if parameters is None:
        return
    required = [one for one in parameters if one.default is Parameter.empty]
    if not any(accepts(call, *form) for subset in (required, parameters) for form in _argument_forms(subset)):
        raise ConfigError(
            f"{callable_name(call)} does not accept the arguments of {callable_name(function)}, which it receives; "
            f"expected a function with the parameters ({', '.join(map(str, parameters))})",
            code="RL-034",
        )


def _argument_forms(parameters: Sequence[Parameter]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the ways to pass these parameters: the first ones by position, the others by name."""
    positional_only = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_ONLY]
    positional = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    keyword_only = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
    for number in range(len(positional), -1, -1):
        by_name = [*positional[number:], *keyword_only]
        yield [*positional_only, *positional[:number]], dict(zip(by_name, by_name, strict=True))
