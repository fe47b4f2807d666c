"""`usage_path`: how often a client that asks for its limits makes a process ask the store, and what is documented.

The scenarios in `scenarios_usage.py` have the answers of every integration.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from werkzeug.test import Client

from ratelimit_mw import ConfigError, MemoryStore, admin, asgi, wsgi
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.engine import usage
from ratelimit_mw.fastapi import RateLimitMiddleware, usage_router
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore

PATH = "/rate-limits"


class SlowStore(RecordingStore):
    """A store that suspends in each peek."""

    suspends = True

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        await asyncio.sleep(0)
        return await super().apeek(charges)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def get(limited: Any) -> httpx.Response:
    async def talk() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://app") as client:
            return await client.get(PATH)

    return asyncio.run(talk())


def wsgi_app(environ: Any, start_response: Any) -> Any:
    start_response("204 No Content", [])
    return []


def test_a_client_that_asks_many_times_at_once_makes_one_call_to_the_store() -> None:
    store = SlowStore()
    limited = asgi.RateLimitMiddleware(app, limits="9/minute", store=store, usage_path=PATH)

    async def ask() -> set[bytes]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://app") as client:
            return {got.content for got in await asyncio.gather(*(client.get(PATH) for _ in range(50)))}

    assert len(asyncio.run(ask())) == 1
    assert [verb for verb, _ in store.calls] == ["peek"]


def test_answers_are_kept_for_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_MOST_KEPT", 2)
    store = RecordingStore()
    client = Client(wsgi.RateLimitMiddleware(wsgi_app, limits="9/minute", store=store, usage_path=PATH))
    for number in (1, 2, 2, 1, 3, 3, 1):  # the third client drops the first two
        client.get(PATH, environ_overrides={"REMOTE_ADDR": f"192.0.2.{number}"})
    asked = [charges[0].key for _, charges in store.calls]
    assert asked == [asked[0], asked[1], asked[2], asked[0]]
    assert len(set(asked)) == 3


def test_window_of_a_calendar_quota_is_the_length_of_the_present_period() -> None:
    store = MemoryStore(clock=Clock(datetime(2027, 2, 8, tzinfo=UTC).timestamp()))
    limited = wsgi.RateLimitMiddleware(
        wsgi_app, limits="9/month using calendar_window in Europe/Berlin", store=store, usage_path=PATH
    )
    client = Client(limited)
    caller = {"REMOTE_ADDR": "192.0.2.1"}
    client.get("/", environ_overrides=caller)
    (shown,) = client.get(PATH, environ_overrides=caller).get_json()["policies"]
    length, rest = 28 * 86_400, 21 * 86_400 - 3600
    assert shown == {"name": "default", "quota": 9, "window": length, "remaining": 8, "reset_after": rest}


def test_a_client_that_an_override_blocks_stays_blocked(tmp_path: Path) -> None:
    settings = Settings(limits="9/minute", store=f"sqlite:///{tmp_path}/limits.db", usage_path=PATH)
    client = Client(wsgi.RateLimitMiddleware(wsgi_app, settings))
    admin.set_override(settings, ip="192.0.2.7", block=True, duration=60)
    asked = [client.get(PATH, environ_overrides={"REMOTE_ADDR": f"192.0.2.{number}"}) for number in (7, 8)]
    assert [got.status_code for got in asked] == [403, 200]


def test_only_get_and_head_are_answered() -> None:
    client = Client(wsgi.RateLimitMiddleware(wsgi_app, limits="9/minute", usage_path=PATH))
    statuses = [
        client.open(PATH, method=method, environ_overrides={"REMOTE_ADDR": "192.0.2.7"}).status_code
        for method in ("GET", "HEAD", "POST", "OPTIONS")
    ]
    assert statuses == [200, 200, 204, 204]


def test_switched_off_the_app_gets_the_request() -> None:
    client = Client(wsgi.RateLimitMiddleware(wsgi_app, limits="9/minute", usage_path=PATH, enabled=False))
    assert client.get(PATH).status_code == 204


def test_an_exempt_usage_path_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"usage_path: '/rate-limits' is exempt, too; remove it from `exempt`"):
        Settings(limits="9/minute", usage_path=PATH, exempt=["/{rest:path}"])


def test_openapi_describes_the_path() -> None:
    described = FastAPI()
    described.include_router(usage_router(PATH))
    operation = described.openapi()["paths"][PATH]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert get(described).status_code == 404  # without the middleware
    [policy] = get(RateLimitMiddleware(described, limits="9/minute", usage_path=PATH)).json()["policies"]
    assert [*policy] == schema["properties"]["policies"]["items"]["required"]
