"""Creates the response to a refused request with the callable in `on_refused`.

The setting is an ASGI app (scope, receive, send), a WSGI app (its second parameter is named `start_response`), or a
callable of the request and the verdict that returns status, headers and body.
"""

from collections.abc import Awaitable, Callable, Mapping
from inspect import Parameter, isawaitable
from typing import Any, Final, Literal, NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_place, parameters_of, parameters_text
from ratelimit_mw.core.validation import TOKEN
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.callables import close_unawaited, resolve_callable
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import BODY_HEADERS, Response, addable_to_refusal

_KINDS: Final = (
    "an ASGI app, a WSGI app (environ, start_response), or a callable (request, verdict) that returns status, headers "
    "and body"
)
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ASGI_PARAMETERS, _PARAMETERS = 3, 2
_VALUES: Final = 3
_BODILESS: Final = (204, 205, 304)
_SERVER_FIELDS: Final = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
_MAX_LATIN1: Final = "\xff"  # headers are latin-1
_MIN_STATUS, _MAX_STATUS = 200, 599  # a final status


class RefusalHandler(NamedTuple):
    """An `on_refused` callable and its kind."""

    kind: Literal["asgi", "wsgi", "plain"]
    call: Any


def refusal_handler(value: object) -> RefusalHandler:
    """Return the handler for an `on_refused` setting. Raises `ConfigError` if it is invalid."""
    call = resolve_callable(value, None)
    parameters = parameters_of(call) or ()
    names = [one.name for one in parameters if one.kind in _POSITIONAL and one.default is Parameter.empty]
    if len(names) == _ASGI_PARAMETERS:
        return RefusalHandler("asgi", call)
    if len(names) == _PARAMETERS:
        return RefusalHandler("wsgi" if names[1] == "start_response" else "plain", call)
    got = (
        f"{value!r:.100}" if isinstance(value, str) else f"{callable_place(call)}, which takes {parameters_text(call)}"
    )
    raise ConfigError(f"got {got}, expected {_KINDS}", code="RL-036")


async def await_result(result: Awaitable[Any]) -> Any:
    """Await an awaitable, and return its result."""
    return await result


async def custom_refusal(
    handler: RefusalHandler | None,
    request: Request,
    verdict: Verdict,
    default: Response,
    wait_for: Callable[[Awaitable[Any]], Awaitable[Any]] | None = await_result,
) -> Response:
    """Return the response of a plain `on_refused`, or `default` if the callable makes no valid one.

    Also returns `default` without a handler, and if the handler is an app.

    `wait_for`: waits for a result that is awaitable; if None, such a result is invalid.
    """
    if handler is None or handler.kind != "plain":
        return default
    call = handler.call
    try:
        value = call(request, verdict)
        response = _checked_response(
            call, await wait_for(value) if wait_for is not None and isawaitable(value) else value, default
        )
    except Exception as error:  # noqa: BLE001  # a refused request always gets a response
        warn_of_failed_handler(call, error)
        return default
    warn_of_success(call, response.status)
    return response


def warn_of_success(call: Any, status: int | str) -> None:
    """Log that the callable or app in `on_refused` chose a status 2xx. `status`: the status, or the status line."""
    if (code := str(status)[:3]).startswith("2"):
        warn_throttled(
            f"on_refused {callable_place(call)}",
            "answered a refused request with %s, which looks like an admission; answer with a status such as 429",
            code,
            code="RL-243",
            call=call,
        )


def warn_of_failed_handler(call: Any, error: Exception) -> None:
    """Log that the callable or app in `on_refused` raised an error."""
    warn_throttled(
        f"on_refused {callable_place(call)}",
        "raised an error, the default response is sent",
        error=error,
        code="RL-220",
        call=call,
    )


def _checked_response(call: Any, value: Any, default: Response) -> Response:
    """Return the response in a callable's result, with the fields of `default`; `default` if the result is invalid."""
    close_unawaited(value)
    try:
        return _response(value, default)
    except Exception as error:  # noqa: BLE001  # a refused request always gets a response
        warn_throttled(
            f"on_refused {callable_place(call)}",
            "returned no valid response, the default one is sent: %s",
            error,
            code="RL-221",
            call=call,
        )
        return default


def _response(value: Any, default: Response) -> Response:
    if not isinstance(value, (tuple, list)) or len(value) != _VALUES:
        got = f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
        raise TypeError(f"got {got}, expected status, headers and body, such as (429, {{}}, 'text')")
    status, fields, body = value
    if type(status) is not int or not _MIN_STATUS <= status <= _MAX_STATUS:
        raise ValueError(f"status: got {status!r:.100}, expected a whole number from {_MIN_STATUS} to {_MAX_STATUS}")
    content = b"" if body is None else body.encode() if isinstance(body, str) else body
    if not isinstance(content, bytes):
        raise TypeError(f"body: got {type(body).__name__}, expected text or bytes")
    if content and status in _BODILESS:
        raise ValueError(f"body: a response with status {status} has no body")
    headers = [_field(*pair) for pair in (fields.items() if isinstance(fields, Mapping) else fields or ())]
    headers = [pair for pair in headers if pair[0].lower() != "content-length"]
    names = {name.lower() for name, _ in headers}
    if "content-type" not in names:
        headers.append(("Content-Type", "text/plain; charset=utf-8"))
    return Response(
        status,
        [
            *headers,
            ("Content-Length", str(len(content))),
            *addable_to_refusal(default.headers, {*names, *BODY_HEADERS}),
        ],
        content,
    )


def _field(name: Any, value: Any) -> tuple[str, str]:
    if not isinstance(name, str) or not isinstance(value, str) or not TOKEN.fullmatch(name):
        raise ValueError(f"headers: got {name!r:.100}, expected a header's name and text")
    if name.lower() in _SERVER_FIELDS:
        raise ValueError(f"headers: {name} is set by the server")
    if not value.isprintable() or max(value, default="") > _MAX_LATIN1:
        raise ValueError(f"headers: the value of {name!r} has characters that no header can have")
    return name, value
