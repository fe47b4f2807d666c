"""The middleware for WSGI apps: Flask, Django, Bottle and every other."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.gate import Gate, Outcome
from ratelimit_mw.request import Request, as_text, below
from ratelimit_mw.response import REASONS, headers, refusal
from ratelimit_mw.settings import Options, Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class RateLimitMiddleware:
    """Limits how often a client may call `app`.

    `app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits="100/minute")`.

    `settings`: `Settings` or a mapping; keyword arguments are the same settings and go before it. The app finds the
    verdict in `environ["ratelimit_mw"].verdict`. Wrong settings raise `ConfigError`.
    """

    def __init__(
        self,
        app: "WSGIApplication",
        settings: Settings | Mapping[str, Any] | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self._gate = Gate(Settings.of(settings, options))
        self._style = self._gate.settings.headers

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's own iterable is returned untouched."""
        verdict = self._gate.admit(_WsgiRequest(environ, environ.get("REMOTE_ADDR") or None))
        if verdict is None:
            return self.app(environ, start_response)
        if not verdict.allowed:
            response = refusal(verdict, self._style)
            start_response(f"{response.status} {REASONS[response.status]}", response.headers)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]
        environ["ratelimit_mw"] = Outcome(verdict)
        return self.app(environ, _with_headers(headers(verdict, self._style), start_response))

    def close(self) -> None:
        """Close the store if the middleware made it. Servers end without telling; call it where yours does."""
        self._gate.close()


def _with_headers(own: list[tuple[str, str]], start_response: "StartResponse") -> "StartResponse":
    if not own:
        return start_response

    def start_with_headers(
        status: str, fields: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if exc_info is None:
            return start_response(status, [*fields, *own])
        return start_response(status, [*fields, *own], exc_info)

    return start_with_headers


class _WsgiRequest(Request):
    __slots__ = ()

    @property
    def method(self) -> str:
        return str(self.raw["REQUEST_METHOD"]).upper()

    @property
    def path(self) -> str:
        # PEP 3333: text that holds bytes as latin-1. SCRIPT_NAME is not part of PATH_INFO.
        return below("", self.raw.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace"))

    @property
    def headers(self) -> Mapping[str, str]:
        found = {
            name[5:].replace("_", "-").lower(): value for name, value in self.raw.items() if name.startswith("HTTP_")
        }
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if self.raw.get(name):
                found[name.replace("_", "-").lower()] = self.raw[name]
        return found

    @property
    def user(self) -> str | None:
        return as_text(self.raw.get("REMOTE_USER"))
