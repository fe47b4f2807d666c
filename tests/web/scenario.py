"""A scenario: settings, and requests with their expected responses. It is independent of the framework."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import json

PROBLEMS = "https://iana.org/assignments/http-problem-types#"
EXCEEDED = "Request cannot be satisfied as assigned quota has been exceeded"
LEFT = ("name", "quota", "window", "remaining", "reset_after")
NO_CAPACITY = "Request cannot be satisfied due to temporary server capacity constraints"

State = tuple[str, int, int | None]  # an item of RateLimit: name, r, t; None without t
Policy = tuple[str, int, int] | tuple[str, int, int, int]  # an item of RateLimit-Policy: name, q, w, and burst

Left = tuple[str, int, float | None, int, float]  # of a client: name, quota, window, remaining, reset_after


@dataclass(frozen=True, kw_only=True)
class Step:
    """One request, and the expected response."""

    method: str = "GET"
    path: str = "/"
    root: str = ""  # root_path, SCRIPT_NAME
    client: str | None = "192.0.2.1"
    headers: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[tuple[str, str], ...] = ()  # headers sent after `headers`; may repeat a name
    user: str | None = None
    wait: float = 0.0  # seconds before the request
    broken: bool = False  # the store raises
    fails: bool = False  # the app raises; if outer code responds, the response lacks the RateLimit fields

    status: int = 200
    state: tuple[State, ...] = ()  # RateLimit; empty if the response has no such field
    policy: tuple[Policy, ...] | None = None  # RateLimit-Policy; None is not checked
    legacy: tuple[int, int, int | None] | None = None  # X-RateLimit: limit, remaining, seconds until reset, if any
    retry_after: int | None = None
    violated: tuple[str, ...] = ()
    blocked: bool = False  # a 403 of the blocklist
    source: str = "store"  # of the verdict that the app sees; "" if there is no verdict
    asked: int = 1  # number of takes from the store
    settled: int = 0  # number of settlements sent after the response
    says: bytes = b"hello"  # the body of the app's response with status 200
    usage: tuple[Left, ...] | None = None  # the middleware answers with these limits; None: it does not answer

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        """All headers of the request; names may repeat."""
        return [*self.headers.items(), *self.lines]

    @property
    def problem(self) -> dict[str, Any] | None:
        """The problem details of a refusal; None if the app responds."""
        if self.status == 403:
            title = "Forbidden"
            detail = (
                "Requests from this client are blocked."
                if self.blocked
                else "The request lacks what identifies its client."
            )
            return {"type": "about:blank", "title": title, "status": 403, "detail": detail}
        if self.status == 503:
            kind, detail = PROBLEMS + "temporary-reduced-capacity", "Requests cannot be counted at the moment."
            return {"type": kind, "title": NO_CAPACITY, "status": 503, "detail": detail}
        if self.status != 429:
            return None
        detail = "This request costs more than its quota ever allows; waiting does not help."
        if self.retry_after is not None:
            detail = f"Try again in {self.retry_after} second{'s' if self.retry_after > 1 else ''}."
        problem = {"type": PROBLEMS + "quota-exceeded", "title": EXCEEDED, "status": 429, "detail": detail}
        return {**problem, "violated-policies": list(self.violated)}

    @property
    def body(self) -> bytes:
        """The exact body of the refusal, or of the app's response."""
        said = self.says if self.problem is None else json.encode(self.problem)
        if self.usage is not None and self.problem is None:
            said = json.encode({"policies": [dict(zip(LEFT, one, strict=True)) for one in self.usage]})
        return b"" if self.method == "HEAD" else said

    @property
    def plain_headers(self) -> dict[str, str]:
        """The exact headers of a refusal, except structured fields."""
        length = str(len(json.encode(self.problem)))
        fields = {"content-type": "application/problem+json", "content-length": length, "cache-control": "no-store"}
        return fields if self.retry_after is None else {**fields, "retry-after": str(self.retry_after)}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Settings, and the steps that run under them in order."""

    name: str
    settings: Mapping[str, Any]
    steps: tuple[Step, ...]
    promises: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A response, in the same form for every framework. Header names are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> list[str]:
        """Return all values of one header."""
        return [value for key, value in self.headers if key == name]


Send = Callable[[Step], Answer]
Face = Callable[[Mapping[str, Any]], Send]  # an app of one framework under these settings


def no(retry_after: int | None, *violated: str, **more: Any) -> Step:
    """A step that gets a 429."""
    return Step(status=429, retry_after=retry_after, violated=violated, **more)


def blocked(**more: Any) -> Step:
    """A step whose client is on the blocklist: the store is not queried."""
    return Step(status=403, blocked=True, asked=0, **more)


def free(**more: Any) -> Step:
    """A step that is not limited: the store is not queried, and the app sees no verdict."""
    return Step(asked=0, source="", **more)


def usage(*limits: Left, **more: Any) -> Step:
    """A step that asks for the client's own limits, which is not charged."""
    return free(path="/rate-limits", usage=limits, **more)
