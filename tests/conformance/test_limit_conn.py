"""Compares `concurrent` with nginx's limit_conn: a zone is a rule, a location is a path of the rule, and 503 is 429."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conformance.tables import NGINX, SENTINEL
from ratelimit_mw import Charge, Concurrency, Limiter, RateLimited
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.memory import MemoryStore

ROWS = NGINX.data["limit_conn"]["rows"]
TOKENS = SENTINEL.data["concurrent_token"]
TWO_ZONES: dict[str, Any] = {
    "limits": [],
    "key": "header:x-key",
    "rules": [
        {"name": "one", "path": ["/one", "/other"], "concurrent": 1},
        {"name": "two", "path": "/two", "concurrent": 1},
    ],
}


class Site:
    """An app behind two zones. `/one?busy` keeps zone one busy; the app responds with 404 to every request."""

    def __init__(self, **settings: Any) -> None:
        self._go = asyncio.Event()
        self.seen: Any = None  # the state that the app found in the last request
        self._limited = RateLimitMiddleware(self._app, **TWO_ZONES, **settings)
        self._busy: asyncio.Task[int | None] | None = None

    async def _app(self, scope: Any, _: Any, send: Any) -> None:
        self.seen = scope.get("state", {}).get("ratelimit")
        if scope["query_string"] == b"busy":
            await self._go.wait()
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    async def status(self, path: str, key: str = "a", query: bytes = b"") -> int | None:
        """Send a request and return the status of its response."""
        found: list[int] = []

        async def send(message: Any) -> None:
            found.extend([message["status"]] if "status" in message else [])

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query,
            "headers": [(b"x-key", key.encode())],
        }
        await self._limited(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]  # a client without messages
        return found[0] if found else None

    async def busy(self) -> None:
        """Start a request that keeps zone one busy."""
        self._busy = asyncio.create_task(self.status("/one", query=b"busy"))
        await asyncio.sleep(0)

    async def abort(self) -> None:
        """Cancel the busy request, as if its client disconnected."""
        assert self._busy is not None
        self._busy.cancel()
        await asyncio.gather(self._busy, return_exceptions=True)

    async def end(self) -> None:
        """Let the busy request finish."""
        self._go.set()
        if self._busy is not None:
            await asyncio.gather(self._busy, return_exceptions=True)


async def other_location() -> int | None:
    site = Site()
    await site.busy()
    found = await site.status("/other")
    await site.end()
    return found


async def other_zone() -> int | None:
    site = Site()
    await site.busy()
    found = await site.status("/two")
    await site.end()
    return found


async def aborted() -> int | None:
    site = Site()
    await site.busy()
    assert await site.status("/one") == 429
    await site.abort()
    return await site.status("/one")


async def custom_status() -> int | None:
    site = Site(on_refused=too_busy)
    await site.busy()
    found = await site.status("/one")
    await site.end()
    return found


async def other_key() -> int | None:
    site = Site()
    await site.busy()
    found = await site.status("/one", key="b")
    await site.end()
    return found


async def dry_run() -> tuple[int | None, list[bool]]:
    site = Site(shadow=True)
    await site.busy()
    status = await site.status("/one")
    decisions = [one.allowed for one in site.seen.verdict.decisions]
    await site.end()
    return status, decisions


async def no_limit() -> Any:
    site = Site()
    assert await site.status("/none") == 404
    return site.seen.verdict


def busy_zone(limit: int) -> Callable[[], Awaitable[int]]:
    """Return a function that takes a slot with `limit` in a zone that is busy under another limit."""

    async def found() -> int:
        limiter = Limiter(MemoryStore())
        with limiter.slot(Concurrency(3), "zone"):
            try:
                with limiter.slot(Concurrency(limit), "zone"):
                    return 404
            except RateLimited:
                return 503

    return found


def too_busy(_: Any, __: Any) -> tuple[int, dict[str, str], str]:
    """Refuse with a custom status."""
    return 501, {}, ""


OURS: dict[str, tuple[Callable[[], Awaitable[Any]], Any]] = {  # by row: what replays it, and the result here
    "zone 1 busy, same zone, other location": (other_location, 429),
    "zone 1 busy, other zone": (other_zone, 404),
    "busy request aborted by client, same zone": (aborted, 404),
    "custom status 501, log level info": (custom_status, 501),
    "busy zone with limit 5": (busy_zone(5), 404),
    "busy zone with limit 1": (busy_zone(1), 503),
    "same zone, different key": (other_key, 404),
    "dry run while busy": (dry_run, (404, [False])),
    "no limit": (no_limit, None),
}
THEIRS: dict[Any, list[str | int]] = {  # by result here: the words of nginx's table
    429: [503],
    503: [503],
    501: [501],
    404: ["not 503", "not 503 (released on disconnect)", "passes (404)"],
    (404, False): ["passes, status REJECTED_DRY_RUN"],
    None: ["status variable absent"],
}


def test_every_row_has_a_test() -> None:
    assert [row for row, _ in ROWS] == list(OURS)


@pytest.mark.parametrize(("row", "theirs"), ROWS)
def test_concurrent_decides_as_limit_conn(row: str, theirs: Any) -> None:
    happens, ours = OURS[row]
    assert asyncio.run(happens()) == ours  # type: ignore[arg-type]  # all of these are coroutines
    assert theirs in THEIRS[(404, False) if ours == (404, [False]) else ours]


def test_concurrency_admits_as_many_as_sentinels_concurrent_tokens(stores: list[Store]) -> None:
    limit = Concurrency(TOKENS["limit"])
    for store in stores:
        taken = [store.take([Charge("k", limit)])[0] for _ in range(TOKENS["parallel"])]
        assert [one.allowed for one in taken] == [True] * TOKENS["ok"] + [False] * TOKENS["blocked"]
        store.settle([Charge("k", limit, -1, at=one.at) for one in taken if one.allowed])
        assert store.peek([Charge("k", limit, 0)])[0].remaining == TOKENS["limit"]
