"""Generates logs, and returns the middleware's verdicts on their requests at the times of the log."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from ratelimit_mw import MemoryStore, Verdict
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.replay import replay

FORMAT = (
    '$remote_addr - $remote_user [$time_local] "$request" $status "$http_x_api_key" "$http_x_plan" "$http_host" '
    '"$cookie_sid"'
)
FIELDS = {
    "ip": ".client",
    "time": ".time",
    "method": ".request.method",
    "path": ".request.target",
    "status": ".status",
    "user": ".user",
    "host": ".request.headers.host",
    "header:x-api-key": ".request.headers.x-api-key",
    "header:x-plan": ".request.headers.x-plan",
    "cookie:sid": ".request.cookies[0]",
}
START = 1_700_000_000  # 14 November 2023, 22:13:20 UTC
PATHS = (
    "/",
    "/login",
    "/search",
    "/search/",
    "//search",
    "/a/../search",
    "/users/7",
    "/users/8",
    "/s%65arch",
    "/b%20c",
)
ADDRESSES = (*(f"198.51.100.{number}" for number in range(20)), *(f"2001:db8:0:{n % 4}::{n:x}" for n in range(12)))


class Logged(NamedTuple):
    """A request of a generated log."""

    second: int
    client: str
    user: str
    method: str
    target: str
    status: int
    headers: dict[str, str]

    @property
    def line(self) -> str:
        moment = f"14/Nov/2023:{22 + (self.second + 800) // 3600:02}:{(self.second + 800) // 60 % 60:02}"
        headers = [*(self.headers.get(name, "-") for name in ("x-api-key", "x-plan", "host")), self.sid or "-"]
        values = '" "'.join(headers)
        return (
            f"{self.client} - {self.user} [{moment}:{(self.second + 800) % 60:02} +0000] "
            f'"{self.method} {self.target} HTTP/1.1" {self.status} "{values}"'
        )

    @property
    def sid(self) -> str | None:
        return self.headers["cookie"].rpartition("sid=")[2] if "cookie" in self.headers else None

    @property
    def json(self) -> str:
        """The same request as JSON, in the form that `FIELDS` describes. Missing values are left out."""
        headers = {name: value for name, value in self.headers.items() if name != "cookie"}
        cookies = [self.sid] if self.sid else []
        request = {"method": self.method, "target": self.target, "headers": headers, "cookies": cookies}
        user = {} if self.user == "-" else {"user": self.user}
        return json.dumps(
            {"time": START + self.second, "client": self.client, **user, "request": request, "status": self.status}
        )


def requests(seed: int, length: int) -> list[Logged]:
    """Return requests of clients with different rates, a few in each second."""
    dice = random.Random(seed)  # noqa: S311  # a log
    found, second = [], 0
    for _ in range(length):
        second += dice.random() < 0.2
        client = dice.choice(ADDRESSES[: dice.choice((2, 8, len(ADDRESSES)))])
        path = dice.choice(PATHS)
        found.append(
            Logged(
                second % 5000,
                client,
                dice.choice(("-", "-", "ann", "b%C3%B6b")),
                dice.choice(("GET", "GET", "POST", "HEAD", "OPTIONS")),
                f"{path}?page={dice.randrange(9)}" if dice.random() < 0.5 else path,
                dice.choice((200, 200, 401, 500)),
                {
                    **dice.choice(({}, {"x-api-key": f"k{dice.randrange(4)}"})),
                    **dice.choice(({}, {"x-plan": dice.choice(("free", "pro", "other"))})),
                    "host": dice.choice(("app.example.com", "api.example.com:8080")),
                    **dice.choice(({}, {"cookie": f"theme=dark; sid=s{dice.randrange(6)}"})),
                },
            )
        )
    return sorted(found, key=lambda one: one.second)


def write(path: Path, logged: Sequence[Logged]) -> Path:
    """Write a log, as JSON if the file's suffix is .json."""
    is_json = path.suffix == ".json"
    path.write_text("".join(f"{one.json if is_json else one.line}\n" for one in logged), "utf-8")
    return path


class Seen(NamedTuple):
    """A verdict without the keys of its charges, because a server hashes keys."""

    allowed: bool
    decisions: tuple[Any, ...]


def seen(verdict: Verdict | None) -> Seen | None:
    return None if verdict is None else Seen(verdict.allowed, tuple(verdict.decisions))


def replayed(settings: dict[str, Any], path: Path, **options: Any) -> list[tuple[float, Seen | None]]:
    """Return the time and the verdict of each request of a log."""
    found: list[tuple[float, Seen | None]] = []
    form: Mapping[str, Any] = {"fields": FIELDS} if path.suffix == ".json" else {"format": FORMAT}
    replay(
        settings,
        path,
        **form,
        on_decision=lambda time, verdict: found.append((time, seen(verdict))),
        **options,
    )
    return found


def served(settings: dict[str, Any], logged: Sequence[Logged], times: Sequence[float]) -> list[Seen | None]:
    """Return the verdict of the ASGI middleware on each request, with these times as the clock of its store."""
    return asyncio.run(_served(settings, logged, times))


async def _served(settings: dict[str, Any], logged: Sequence[Logged], times: Sequence[float]) -> list[Seen | None]:
    now, status = START * 1.0, 200
    events: list[Seen | None] = []
    messages: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        messages.append(message)

    store = MemoryStore(clock=lambda: now)
    middleware = RateLimitMiddleware(
        app, **settings, store=store, on_decision=lambda event: events.append(seen(event.verdict))
    )
    found: list[Seen | None] = []
    for one, time in zip(logged, times, strict=True):
        now, status = time, one.status
        events.clear()
        await middleware(_scope(one), receive, send)
        (verdict,) = events or [None]
        found.append(verdict)
    return found


def _scope(one: Logged) -> dict[str, Any]:
    path, _, query = one.target.partition("?")
    return {
        "type": "http",
        "method": one.method,
        "path": unquote_to_bytes(path).decode(),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in one.headers.items()],
        "client": (one.client, 5000),
        "user": SimpleNamespace(is_authenticated=one.user != "-", identity=one.user),
        "state": {},
    }


def combined(
    seconds: int, client: str, request: str = "GET / HTTP/1.1", status: int = 200, agent: str = "curl/8"
) -> str:
    """Return a line of a combined log. `seconds`: its time after the start."""
    second = seconds + 800
    moment = f"14/Nov/2023:{22 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"
    return f'{client} - - [{moment}] "{request}" {status} 5 "-" "{agent}"\n'


def crowd(seed: int) -> Iterator[str]:
    """Yield a combined log of an hour: 20,000 honest clients, and 25 abusers `198.51.100.N`, in order of time."""
    dice = random.Random(seed)  # noqa: S311  # a log
    times: list[tuple[int, str]] = []
    for number in range(20_000):
        client = f"10.{number >> 8}.{number & 255}.1"
        for _ in range(dice.choice((1, 1, 1, 2, 3))):  # visits: a page and its resources, a few seconds apart
            at = dice.randrange(3600)
            for _ in range(min(20, 1 + int(dice.expovariate(0.4)))):
                times.append((at, client))
                at += dice.choice((0, 0, 1, 2, 5, 9))
    for number in range(25):
        rate = dice.uniform(1.5, 4)  # a second
        at = dice.randrange(3000)
        times += [(at + int(index / rate), f"198.51.100.{number}") for index in range(int(rate * 500))]
    for at, client in sorted(times):
        yield combined(at, client)


def tier_of(request: Any) -> str:
    """Return the tier of a client, which is `pro` for some addresses."""
    return "pro" if request.client.endswith(".2") else "free"


def device_of(request: Any) -> str | None:
    """Return a key: an API key, or the session at a host, if the request has one of these."""
    session = request.cookies.get("sid")
    return request.header("x-api-key") or (session and f"{session}@{request.header('host')}")


def plan_of(request: Any) -> str:
    """Return the tier of a request, by its user, its method, and its plan."""
    if request.user == "ann" or request.method == "HEAD":
        return "pro"
    return request.header("x-plan") or "free"


def limits_of(request: Any) -> str:
    return "9/minute" if request.path.startswith("/users/") else "5/minute using gcra"


def cost_of(request: Any) -> int:
    return 2 if request.method == "POST" else 1


def is_search(request: Any) -> bool:
    return "search" in str(request.path)


def address_of(request: Any) -> str | None:
    """Return the value that `=ip` assumes."""
    return client_address(request.client, 64)


async def awaited(request: Any) -> str:
    return "x"


def settled(request: Any, response: Any) -> int:
    return 1
