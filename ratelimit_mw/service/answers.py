"""Builds the service's own answers: JSON, problem details, and verdicts as JSON."""

from math import isinf
from typing import Any, Final

from msgspec import json

from ratelimit_mw.core.errors import RateLimitError
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.response import HeaderList, Response, problem_response

_TITLES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
STORE_RETRY: Final = 1  # seconds; a hint, because the end of an outage is unknown


class Rejected(RateLimitError):
    """A call that the service cannot answer. `detail` begins with the place of the mistake, if there is one."""

    def __init__(self, status: int, detail: str, fields: HeaderList | None = None) -> None:
        super().__init__(detail)
        self.response: Final = problem_response(status, "about:blank", _TITLES[status], detail, (), fields)


def json_response(value: object) -> Response:
    """Return a response with a JSON body."""
    body = json.encode(value)
    fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    return Response(200, fields, body)


def numbers(verdict: Verdict | None) -> dict[str, Any]:
    """Return a verdict for JSON.

    `limit` and `remaining` are null if no limit binds. `retry_after` is null if the same request can never pass.
    """
    if verdict is None:
        verdict = _UNLIMITED
    binds = verdict.binding is not None
    return {
        "allowed": verdict.allowed,
        "limit": verdict.limit if binds else None,
        "remaining": verdict.remaining if binds else None,
        "retry_after": float(STORE_RETRY) if verdict.source == "denied_on_error" else finite(verdict.retry_after),
        "next_after": finite(verdict.next_after),
        "reset_after": finite(verdict.reset_after),
        "delay": verdict.delay,
        "source": verdict.source,
    }


def finite(seconds: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return None if isinf(seconds) else seconds


_UNLIMITED: Final = Verdict(True, (), ())
