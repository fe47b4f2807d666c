"""Starlette: the middleware, a decorator for endpoints, and limits on routes, mounts and routers."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import SimpleNamespace
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Unpack, get_type_hints

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import Receive, Scope, Send, close_message, send_refusal
from ratelimit_mw.checks.decorators import NoDependency, check_parentheses, registered_path
from ratelimit_mw.core.errors import ConfigError, ConfigTypeError, require
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import callable_name, explain_exempt, signature_of
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RefusedCharge, Verdict
from ratelimit_mw.http.on_refused import custom_refusal
from ratelimit_mw.http.response import Response as OwnResponse
from ratelimit_mw.http.response import addable
from ratelimit_mw.settings.endpoint_limits import WRAPPED, EndpointLimit
from ratelimit_mw.settings.rule import LimitsValue
from ratelimit_mw.starlette.enforcement import (
    AsgiEndpointLimit,
    EndpointDecision,
    EndpointOptions,
    asgi_limits_on,
    bucket_name_of,
    decision_on_charge,
    enforce_on_endpoint,
)
from ratelimit_mw.starlette.route_limits import RateLimit, limit_class

with require("starlette"):
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket, WebSocketState

__all__ = ["RateLimit", "RateLimitMiddleware", "exempt", "limit"]

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_CONNECTIONS: Final = (Request, WebSocket, HTTPConnection)
_NAMES: Final = ("request", "websocket")
_ALTERNATIVES: Final = (
    "give it `request: Request` (`websocket: WebSocket`), or in FastAPI use Depends(RateLimit(...)) of "
    "ratelimit_mw.fastapi"
)
_NO_DEPENDENCY: Final = (
    'got limit("5/minute"), a decorator, as a dependency: did you mean Depends(RateLimit("5/minute")) of '
    "ratelimit_mw.fastapi?"
)
_REGISTERED: Final = (
    "@limit on {}: {} is registered already, without the limit; put @limit below what registers the route"
)
_MESSAGE_METHODS: Final = ("on_receive", "on_disconnect")
_MESSAGES_HINT: Final = "put it on the class or on on_connect, and limit messages with the middleware's `messages`"


@check_arguments(EndpointOptions)
def limit(limits: LimitsValue, **options: Unpack[EndpointOptions]) -> Callable[[_Endpoint], _Endpoint]:
    """Return a decorator that limits one endpoint: a plain or async function, a method, or a class.

    `limits` and `options` are those of a rule in the settings. Without a `name`, all routes of the function or class
    share one bucket, and headers name the limit after the route. Functions of the same name in one module, e.g. made by
    a factory, share a bucket, too.

    Several decorators on one endpoint are decided in one step. Inside `RateLimitMiddleware`, its store and settings are
    used. Its own limits are decided before, as a step of their own: a request that is refused here has used them. A
    rule for the path is one step. Without the middleware, `store` is used, or else the memory of this process, with a
    warning.

    Put the decorator below the one that registers the endpoint, such as `@app.get`. Above that, it has no effect, and a
    warning is logged: at once, if the app or router is a variable of the caller; otherwise at startup, or when the
    first request reaches the middleware.

    Raises `ConfigError` for invalid limits or options, and `TypeError` for a function without a parameter for the
    request, because a request to such a function could not be refused.
    """
    check_parentheses(limits)
    endpoint_limit = AsgiEndpointLimit(limits, **options)
    return _LimitDecorator(endpoint_limit)


class _LimitDecorator:
    """The decorator that `limit` returns. FastAPI gets an error if it is used as a dependency."""

    __slots__ = ("_endpoint_limit",)

    def __init__(self, endpoint_limit: AsgiEndpointLimit) -> None:
        self._endpoint_limit: Final = endpoint_limit

    def __call__(self, endpoint: Annotated[_Endpoint, NoDependency(_NO_DEPENDENCY)]) -> _Endpoint:
        """Limit one endpoint."""
        if (path := registered_path(endpoint)) is not None:
            finding = Finding(_REGISTERED.format(callable_name(endpoint), path), code="RL-101")
            warn_or_fail([finding], strict=self._endpoint_limit.standalone_settings.strict)
        limited: _Endpoint = _limit_endpoint(self._endpoint_limit, endpoint)
        return limited

    @property
    def dependency(self) -> Any:
        """Raise ConfigError. FastAPI reads this property if `dependencies` has the object without `Depends`."""
        raise ConfigError(_NO_DEPENDENCY, code="RL-047")


@check_arguments(explain=explain_exempt)
def exempt(endpoint: _Endpoint) -> _Endpoint:
    """Exempt an endpoint from `RateLimit` on its mount or router, and among FastAPI's dependencies.

    `RateLimitMiddleware` decides before routing and does not see the decorator; exempt the path there, with a rule that
    has `exempt=True` or with the option `exempt`. A `limit` on the endpoint itself still applies.
    """
    return EndpointLimit.exemption().attach(endpoint)


def _limit_endpoint(endpoint_limit: AsgiEndpointLimit, endpoint: Any) -> Any:
    if isinstance(endpoint, type):
        return limit_class(endpoint_limit, endpoint)
    _check_endpoint(endpoint)
    parameter = _request_parameter(endpoint)
    if parameter is None:
        raise ConfigTypeError(_without_request(endpoint), code="RL-046")
    is_async = inspect.iscoroutinefunction(endpoint)

    @functools.wraps(endpoint)
    async def limited_endpoint(*arguments: Any, **named: Any) -> Any:
        connection = parameter.of(arguments, named)
        if not isinstance(connection, HTTPConnection):
            raise ConfigTypeError(
                f"{name}: got {type(connection).__name__} as {parameter.name}, expected a request; {_ALTERNATIVES}",
                code="RL-046",
            )
        decision = await enforce_on_endpoint(connection.scope, endpoint_limits, endpoint)
        if decision is not None and decision.refusing_verdict is not None:
            return await respond_to_refused(decision, decision.refusing_verdict, connection)
        try:
            if is_async:
                answer = await endpoint(*arguments, **named)
            else:
                answer = await run_in_threadpool(endpoint, *arguments, **named)
        except RefusedCharge as error:
            return await respond_to_charge(connection, error)
        if decision is not None and isinstance(answer, Response):
            _add_headers(decision, answer)
        return answer

    endpoint_limit.attach(limited_endpoint, deep=False)  # not to `endpoint`, which other wrappers may use, too
    WRAPPED.add(endpoint)
    name = bucket_name_of(endpoint)
    endpoint_limits = asgi_limits_on(limited_endpoint)
    return limited_endpoint


def _without_request(endpoint: Any) -> str:
    """Return the error message for an endpoint without a parameter that is known to be the request."""
    name, parameters = bucket_name_of(endpoint), signature_of(endpoint).parameters.values()
    candidate = next((one.name for one in parameters if one.name != "self" and one.default is Parameter.empty), None)
    if candidate is None:
        return f"{name} has no parameter for the request, so it cannot be limited; {_ALTERNATIVES}"
    return (
        f"{name} has no parameter that is known to be the request, so it cannot be limited; if {candidate} is the "
        f"request, write `{candidate}: Request` (`{candidate}: WebSocket`), else {_ALTERNATIVES}"
    )


def _check_endpoint(endpoint: Any) -> None:
    """Raise `TypeError` for objects that cannot be limited."""
    if isinstance(endpoint, (classmethod, staticmethod)):
        raise ConfigTypeError(
            f"got a {type(endpoint).__name__}; put the limit below it, on the function", code="RL-046"
        )
    if not inspect.isroutine(endpoint):
        raise ConfigTypeError(
            f"a limit is attached to a function or a class, as @limit('5/minute'); got {endpoint!r:.100}", code="RL-046"
        )
    if endpoint.__name__ in _MESSAGE_METHODS:
        raise ConfigTypeError(
            f"{bucket_name_of(endpoint)} is called for each message, and a limit is for the handshake; "
            f"{_MESSAGES_HINT}",
            code="RL-046",
        )
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise ConfigTypeError(
            f"{bucket_name_of(endpoint)} yields, and cannot be wrapped; {_ALTERNATIVES}", code="RL-046"
        )


class _RequestParameter(NamedTuple):
    """The place of the request among the arguments of an endpoint."""

    name: str
    number: int

    def of(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the request, or None if it was not passed."""
        if self.name in named:
            return named[self.name]
        return arguments[self.number] if self.number < len(arguments) else None


def _request_parameter(function: Callable[..., Any]) -> _RequestParameter | None:
    """Return the parameter annotated as a request or websocket, or else one with such a name, or else None.

    A name counts only if the annotation is missing, is `Any`, or cannot be evaluated yet.
    """
    parameters = list(signature_of(function).parameters.values())
    scope = getattr(function, "__globals__", {})
    hints = [_hint(parameter, scope) for parameter in parameters]
    for index, (parameter, hint) in enumerate(zip(parameters, hints, strict=True)):
        if isinstance(hint, type) and issubclass(hint, _CONNECTIONS):
            return _RequestParameter(parameter.name, index)
    for index, (parameter, hint) in enumerate(zip(parameters, hints, strict=True)):
        if parameter.name in _NAMES and hint is Any:
            return _RequestParameter(parameter.name, index)
    return None


def _hint(parameter: Parameter, scope: Mapping[str, Any]) -> Any:
    """Return the evaluated annotation; `Any` if it is missing or cannot be evaluated, as under TYPE_CHECKING."""
    if parameter.annotation is Parameter.empty:
        return Any
    annotated = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(annotated, globalns=dict(scope))["it"]
    except Exception:  # noqa: BLE001  # an annotation may be any expression
        return Any


class _RefusalResponse(Response):
    """A refusal as a response of Starlette, so that outer decorators can inspect and change it.

    If `on_refused` is an ASGI app, that app sends the response, and the content of this object is not used.
    """

    def __init__(self, decision: EndpointDecision, verdict: Verdict, refusal: OwnResponse) -> None:
        super().__init__(b"" if decision.request.method == "HEAD" else refusal.body, refusal.status)
        self.raw_headers = refusal.raw_headers
        self._decision, self._verdict = decision, verdict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal_handler = self._decision.gate.refusal_handler_for(self._verdict)
        if refusal_handler is not None and refusal_handler.kind == "asgi":
            await send_refusal(self._decision.request, self._verdict, self._decision.gate, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def respond_to_refused(
    decision: EndpointDecision, verdict: Verdict, connection: HTTPConnection
) -> Response | None:
    """Return the response to a refused request; for a websocket, send it and return None."""
    request, gate = decision.request, decision.gate
    if not isinstance(connection, WebSocket):
        default = gate.default_refusal(request, verdict)
        refusal = await custom_refusal(gate.refusal_handler_for(verdict), request, verdict, default)
        return _RefusalResponse(decision, verdict, refusal)
    if connection.client_state is WebSocketState.CONNECTING:
        await send_refusal(request, verdict, gate, connection.receive, connection.send)
    else:  # the app has accepted the websocket before this decision
        await connection.send(close_message(gate.default_refusal(request, verdict).status))
    return None


async def respond_to_charge(connection: HTTPConnection, error: RefusedCharge) -> Response | None:
    """Do what `respond_to_refused` does for a refused charge. Raises it again if a middleware will respond."""
    decision = decision_on_charge(connection.scope, error)
    return await respond_to_refused(decision, decision.verdict or error.verdict, connection)


def _add_headers(decision: EndpointDecision, response: Response) -> None:
    """Add the rate limit headers, unless an outer middleware adds them."""
    for name, value in addable(decision.verdict, decision.fields, response.headers.items()):
        response.headers.append(name, value)
    decision.claim_headers()
