"""Finds decorators that limit nothing on a web endpoint, or all its clients together. Imports no framework."""

import sys
from collections.abc import Callable, Iterable, Iterator
from inspect import isfunction
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import callable_name

P = ParamSpec("P")
R = TypeVar("R")
USE_LIMIT: Final = "for web endpoints use `limit` of ratelimit_mw.fastapi, starlette, flask or django"
_CALLERS: Final = {  # modules that call endpoints
    "fastapi.routing",
    "starlette.routing",
    "starlette.endpoints",
    "flask.app",
    "flask.views",
    "django.core.handlers.base",
    "django.views.generic.base",
}
_THREADS: Final = "anyio"  # the package whose threads run plain endpoints of Starlette, and also other functions
_WORKER: Final = "WorkerThread.run"  # of that package; its event loop calls other functions
_REGISTRIES: Final = {("starlette", "Starlette"), ("starlette", "Router"), ("flask", "Flask")}
_FLASK: Final = {("flask", "Flask"), ("flask", "Blueprint")}
_DEPENDENCIES: Final = "fastapi.dependencies.utils"  # the module that calls dependencies
_MAX_FRAMES: Final = 50  # to examine


def registered_path(function: object, caller: FrameType) -> str | None:
    """Return the path at which an app or router in a variable of `caller` has registered this function, or None.

    A decorator looks there while it runs, because without a middleware no code of this package may run later.
    """
    if not isfunction(function) or not {"starlette", "flask"} & sys.modules.keys():
        return None
    for known in _variables_of(caller):
        if not _REGISTRIES.isdisjoint(_names_of(type(known))):
            path = next((path for path, endpoint in _endpoints_of(known) if endpoint is function), None)
            if path is not None:
                return path
    return None


def reject_registered(function: object, caller: FrameType) -> None:
    """Raise `ConfigError` if an app or router in a variable of `caller` has this function: the limit has no effect."""
    path = registered_path(function, caller)
    if path is not None:
        raise ConfigError(
            f"limit: got {callable_name(function)}, which is registered for {path} already, without this limit; "  # type: ignore[arg-type]  # it is a function
            f"{USE_LIMIT}, below what registers the route",
            code="RL-046",
        )


def warn_of_other_framework(function: object, caller: FrameType, package: str) -> None:
    """Warn if `limit` of this package seems to be on an endpoint of an app that is not of its framework.

    That is, if a variable of `caller` has an app or router of Starlette or FastAPI, and none has one of Flask. A
    decorator looks there, because no code of this package runs later in an app without a middleware. It is a warning,
    because a module may import such an app for another purpose.
    """
    if not isfunction(function) or "starlette" not in sys.modules:
        return
    kinds = {id(type(known)): type(known) for known in _variables_of(caller)}.values()  # each once, as most are alike
    names = {name for kind in kinds for name in _names_of(kind)}
    if not names.isdisjoint(_REGISTRIES - _FLASK) and names.isdisjoint(_FLASK):
        text = (
            f"@limit on {callable_name(function)}: got limit of {package} in a module with an app of Starlette or "
            "FastAPI, which does not enforce it; there use limit of ratelimit_mw.starlette or ratelimit_mw.fastapi"
        )
        warn_or_fail([Finding(text, code="RL-139", weakens_limits=False)], strict=False)


def is_made_by_dependency(caller: FrameType | None) -> bool:
    """Return whether a dependency of FastAPI, or a function in a thread of Starlette, is running in this thread."""
    for _ in range(_MAX_FRAMES):
        if caller is None:
            return False
        module = str(caller.f_globals.get("__name__"))
        is_worker = module.partition(".")[0] == _THREADS and caller.f_code.co_qualname == _WORKER
        if module == _DEPENDENCIES or is_worker:
            return True
        caller = caller.f_back
    return False


class EndpointWatch:
    """Warns once if a function with one bucket for all its calls is an endpoint, because all clients share that bucket.

    `done`: no more calls need to be examined. `key`: None if the function has one bucket for all its calls.
    """

    __slots__ = ("_name", "done")

    def __init__(self, function: Callable[..., Any], key: object) -> None:
        self._name: Final = callable_name(function)
        self.done = key is not None

    def examine(self, caller: FrameType, arguments: tuple[Any, ...]) -> None:
        """Warn if the caller of the function is a framework. The first call shows that, so no other is examined."""
        self.done = True
        module = str(caller.f_globals.get("__name__"))
        by_thread = module.partition(".")[0] == _THREADS and any(map(_is_request, arguments))
        if module in _CALLERS or by_thread:
            warn_or_fail([self.finding], strict=False)

    def watch(self, wrapper: Callable[P, R]) -> Callable[P, R]:
        """Return the wrapper of the function, and record it for `watch_on`."""
        _watches[wrapper] = self
        return wrapper

    @property
    def finding(self) -> Finding:
        """The finding on the function as an endpoint."""
        text = (
            f"limit of Limiter is on {self._name}, a web endpoint: all clients share its bucket, and a refused one "
            f"gets 500; {USE_LIMIT}"
        )
        return Finding(text, code="RL-136", weakens_limits=False)


_watches: Final[WeakKeyDictionary[Any, EndpointWatch]] = WeakKeyDictionary()


def watch_on(endpoint: object) -> EndpointWatch | None:
    """Return the watch on a function that `limit` of a Limiter has wrapped, if it has one bucket for all its calls."""
    watch = _watches.get(endpoint) if isfunction(endpoint) else None
    return None if watch is None or watch.done else watch


def _variables_of(caller: FrameType) -> Iterable[object]:
    return {**caller.f_globals, **caller.f_locals}.values()


def _names_of(kind: type) -> set[tuple[str, str]]:
    """Return the package and the name of a class, and of each of its bases."""
    return {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}


def _is_request(argument: object) -> bool:
    return any(kind.__module__ == "starlette.requests" for kind in type(argument).__mro__)


def _endpoints_of(registry: Any) -> Iterator[tuple[str, object]]:
    """Yield the endpoints of an app or router, with their paths."""
    views = getattr(registry, "view_functions", None)
    if views is None:
        yield from ((str(getattr(one, "path", "")), getattr(one, "endpoint", None)) for one in registry.routes)
        return
    for rule in registry.url_map.iter_rules():
        yield rule.rule, views.get(rule.endpoint)
