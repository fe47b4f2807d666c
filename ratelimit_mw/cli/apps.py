"""Imports an ASGI app for the commands of `ratelimit_mw.admin`, as `--app shop.main:app`, and finds its limits.

A request is followed through the app as the app would pass it on, by its middleware and routes, but nothing of the app
is called, except its factory and the routes' `matches`.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from inspect import ismethod
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from ratelimit_mw.admin.target import DescribedRequest, Step, Target
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.signatures import accepts
from ratelimit_mw.core.validation import did_you_mean
from ratelimit_mw.engine.base_gate import ASGI
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.http.apps import is_of
from ratelimit_mw.http.routes import all_routes, every_match, full_match, starlette_route
from ratelimit_mw.http.views import TargetRequest
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import CompiledRule
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import HonorsExempt

_NAME: Final = re.compile(r"([\w.]+):(\w+(?:\.\w+)*)(\(\))?")
_EXPECTED: Final = "MODULE:APP, or MODULE:FUNCTION of a function that returns the app"
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_MAX_DEPTH: Final = 50  # layers of an app, and mounts inside each other
_GATE: Final = "ratelimit_mw.gate"  # key in the scope: the gate of the outermost middleware so far
_ENFORCED: Final = "ratelimit_mw.enforced_here"  # key in the scope: the limits on endpoints so far
_INSIDE: Final = ("middleware_stack", "router", "app", "asgi_app", "application", "other_asgi_app", "__wrapped__")
_OTHERS: Final = {  # frameworks that load their apps themselves
    "flask": "is a Flask app: run `flask --app MODULE ratelimit`",
    "django": "is a Django app: run `manage.py ratelimit`",
}


class _Limits(NamedTuple):
    """A RateLimitMiddleware of an app: its settings, and the app that it wraps."""

    settings: Settings
    app: Any


def target_of_app(name: str, folder: str | None = None) -> Target:
    """Return the target of an app. `name`: `MODULE:APP`, or that of a factory. `folder`: has the module.

    Its settings are those of the outermost RateLimitMiddleware; without one, those of the first limit on an endpoint
    that has a store of its own. Raises `ConfigError` if there is no such app, or if it has neither.
    """
    app = _imported(name, folder)
    limits = next(_limits_in(app), None)
    if limits is not None:
        rules = RuleSet(limits.settings)
        rules.adapt_to_router(limits.app)
        settings = limits.settings
    elif (own := next(_settings_of_endpoints(app), None)) is not None:
        settings, rules = own, RuleSet(own)
    else:
        hint = next((f"; it {hint}" for package, hint in _OTHERS.items() if is_of(app, package)), "")
        raise ConfigError(f"--app: {name!r} has no RateLimitMiddleware of ratelimit_mw.asgi{hint}", code="RL-051")

    def find_steps(described: DescribedRequest) -> Iterator[Step]:
        return _Walk(_matched, described.ip).through(app, described.request().raw)

    def find_endpoint_rules() -> Iterator[CompiledRule]:
        scope = DescribedRequest("/").request().raw
        return (rule for step in _Walk(_every_route, None).through(app, scope) for rule in step.endpoint_rules)

    return Target(settings, rules, find_steps, find_endpoint_rules=find_endpoint_rules)


def _imported(name: str, folder: str | None) -> Any:
    if folder is not None:
        if not Path(folder).is_dir():
            raise ConfigError(f"--app-dir: got {folder!r}, expected a folder", code="RL-051")
        sys.path.insert(0, str(Path(folder).resolve()))
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigError(f"--app: got {name!r}, expected {_EXPECTED}", code="RL-051")
    try:
        with redirect_stdout(sys.stderr):  # what the app prints is no part of the answer
            module = import_module(parts[1])
            app = attrgetter(parts[2])(module)
            return app() if parts[3] or accepts(app, ()) else app
    except Exception as error:  # importing a module runs its code, which may raise anything
        reason = f"{type(error).__name__}: {error}{_hint(error, parts[1], parts[2])}"
        raise ConfigError(f"--app: got {name!r}, expected {_EXPECTED}: {reason}", code="RL-051") from error


def _hint(error: Exception, module: str, attribute: str) -> str:
    """Return what may be meant by a name that does not exist."""
    if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
        return "; run the command in the folder of the module, or name the folder with --app-dir"
    if isinstance(error, AttributeError) and module in sys.modules:
        return did_you_mean(attribute, [one for one in vars(sys.modules[module]) if not one.startswith("_")])
    return ""


def _layers(app: Any) -> Iterator[Any]:
    """Yield an app, its middleware and the router inside, the outermost first. A RateLimitMiddleware is a `_Limits`."""
    for _ in range(_MAX_DEPTH):
        if ismethod(app):  # of a router, which its middleware wraps
            yield app.__self__
            return
        if isinstance(app, RateLimitMiddleware):
            yield _Limits(app.settings, app.app)
        elif not _is_router(app):
            yield app
        if getattr(app, "middleware_stack", None) is None:  # Starlette builds it at the first request
            yield from _unbuilt(getattr(app, "user_middleware", ()), app)
        inside = (getattr(app, name, None) for name in _INSIDE)
        app = next((one for one in inside if callable(one)), None)
        if app is None:
            return


def _unbuilt(entries: Iterable[Any], app: Any) -> Iterator[Any]:
    """Yield the middleware of this package that an app will build."""
    for entry in entries:
        kind: Any = entry.cls
        if not isinstance(kind, type):
            continue
        if issubclass(kind, RateLimitMiddleware) and kind.__init__ is RateLimitMiddleware.__init__:
            options = dict(entry.kwargs)  # not built, as it would repeat its findings, and create the file of a store
            first = entry.args[0] if entry.args else options.pop("settings", None)
            yield _Limits(Settings.of(first, options), app)
        elif issubclass(kind, (RateLimitMiddleware, HonorsExempt)):
            built = entry.cls(app, *entry.args, **entry.kwargs)
            yield _Limits(built.settings, app) if isinstance(built, RateLimitMiddleware) else built


def _is_router(app: Any) -> bool:
    return isinstance(getattr(app, "routes", None), list) and not hasattr(app, "user_middleware")


def _limits_in(app: Any, depth: int = 0) -> Iterator[_Limits]:
    """Yield each RateLimitMiddleware of an app and of the apps that are mounted in it, the outermost first."""
    for layer in _layers(app):
        if isinstance(layer, _Limits):
            yield layer
        for info in all_routes(layer.routes) if _is_router(layer) and depth < _MAX_DEPTH else ():
            yield from _limits_in(getattr(starlette_route(info.route), "app", None), depth + 1)


def _settings_of_endpoints(app: Any) -> Iterator[Settings]:
    """Yield the settings of each limit on an endpoint that has a store of its own, for apps without a middleware."""
    if "ratelimit_mw.starlette" in sys.modules:  # else there are none
        from ratelimit_mw.cli.endpoints import own_settings_below  # noqa: PLC0415  # imports Starlette

        yield from own_settings_below(app)


_Select = Callable[[Sequence[Any], Mapping[str, Any]], Iterable[tuple[Any, dict[str, Any]]]]


def _matched(routes: Sequence[Any], scope: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the route to which the router passes a request, with its scope."""
    kinds = ("http", "websocket") if scope["method"] == "GET" else ("http",)  # a handshake is a GET
    found = (full_match(routes, {**scope, "type": kind}) for kind in kinds)
    yield from islice((one for one in found if one[0] is not None), 1)


def _every_route(routes: Sequence[Any], scope: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for route, inner in every_match(routes, scope):
        for method in _METHODS if isinstance(inner["endpoint"], type) else ("GET",):  # its methods may have limits
            yield route, {**inner, "method": method, "type": "http" if hasattr(route, "methods") else "websocket"}


class _Walk:
    """Follows requests through an app. `select`: returns the routes to follow, each with the scope that it gets."""

    def __init__(self, select: _Select, peer: str | None) -> None:
        self._select: Final = select
        self._peer: Final = peer or None

    def through(self, app: Any, scope: Mapping[str, Any]) -> Iterator[Step]:
        """Yield the steps of the request in an app, until an endpoint or an app of another kind has it."""
        scope = dict(scope)
        for layer in _layers(app):
            if isinstance(layer, _Limits):
                gate = _quiet_gate(layer.settings)
                gate.rule_set.adapt_to_router(layer.app)
                scope.setdefault(_GATE, gate)
                yield Step(gate.rule_set, TargetRequest({**scope}, self._peer), store=layer.settings.store)
            elif hasattr(layer, "user_middleware"):
                scope["app"] = layer
                scope["root_path"] = getattr(layer, "root_path", "") or scope["root_path"]
            elif isinstance(layer, HonorsExempt):
                yield from self._limits_at(layer, scope)
            elif _is_router(layer):
                scope.setdefault("router", layer)
                for route, inner in self._select(layer.routes, scope):
                    yield from self.through(getattr(route, "app", None), inner)
                    if not hasattr(route, "routes"):  # else a mount, or a host
                        yield from self._limits_at(None, inner)

    def _limits_at(self, around: Any, scope: dict[str, Any]) -> Iterator[Step]:
        """Yield the steps of limits at one place: middleware of a route, or an endpoint with its dependencies."""
        if "ratelimit_mw.starlette" not in sys.modules:
            return
        from ratelimit_mw.cli.endpoints import checks_at  # noqa: PLC0415  # imports Starlette

        for checks, template in checks_at(around, scope):
            for check in checks:
                enforced = scope.get(_ENFORCED, ())
                limits = tuple(one for one in check.endpoint_limits if one not in enforced)
                scope[_ENFORCED] = enforced + limits
                own = check.endpoint_limits[0]
                outer = scope.get(_GATE) or _quiet_gate(own.standalone_settings)
                gate, store = outer.nested, outer.settings.store if own.store is None else own.store
                rules, _ = gate.compile_for_endpoint(limits, check.all_limits, check.name, check.shown)
                if rules:
                    yield Step(gate.rule_set, TargetRequest({**scope}, self._peer, route=template), rules, store)


def _quiet_gate(settings: Settings) -> AsyncGate:
    """Return a gate that repeats no findings of the start, and opens no file."""
    return AsyncGate(settings, integration=ASGI._replace(probes_store=False), is_nested=True)
