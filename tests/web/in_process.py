"""Helpers that send requests to Starlette and FastAPI apps in this process."""

import asyncio
from collections.abc import Sequence
from typing import Any

import http_sf
import httpx
from msgspec import json

from ratelimit_mw.testing import Clock, RecordingStore
from web.scenario import Answer

Call = str | tuple[str, str]  # a path for a GET, or a method and a path
FIELDS = ("ratelimit", "ratelimit-policy", "retry-after", "cache-control", "content-type")


def recording(**settings: Any) -> tuple[RecordingStore, dict[str, Any]]:
    """Return a store that records its calls, and settings with this store."""
    store = RecordingStore(clock=Clock())
    return store, {"limits": [], "store": store, "plain_keys": True, **settings}


def answers(app: Any, *calls: Call, **options: Any) -> list[Answer]:
    """Send calls to an app in order, and return its responses. `options`: passed to httpx."""

    async def talk() -> list[Answer]:
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            found = []
            for call in calls:
                method, path = ("GET", call) if isinstance(call, str) else call
                got = await client.request(method, path, **options)
                fields = [(name.lower(), value) for name, value in got.headers.multi_items()]
                found.append(Answer(got.status_code, fields, got.content))
            return found

    return asyncio.run(talk())


def statuses(app: Any, *calls: Call, **options: Any) -> list[int]:
    """Send calls to an app in order, and return the statuses of its responses."""
    return [answer.status for answer in answers(app, *calls, **options)]


def items(answer: Answer, name: str = "ratelimit") -> list[tuple[str, dict[str, int]]]:
    """Return the items of a structured field that is a list: names, each with its parameters."""
    found: Any = http_sf.parse(", ".join(answer.field(name)).encode(), tltype="list") if answer.field(name) else []
    return list(found)


def taken(store: RecordingStore) -> list[list[str]]:
    """Return the key and quota of each charge, for each take of the store."""
    return [
        [f"{charge.key} {charge.limit.quota}" for charge in charges] for verb, charges in store.calls if verb == "take"
    ]


def problem(*policies: str, seconds: int = 60) -> dict[str, Any]:
    """Return the decoded body of a refusal."""
    return {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": f"Try again in {seconds} seconds.",
        "violated-policies": list(policies),
    }


def check_refusal(answer: Answer, limits: Sequence[tuple[str, int, int]], refusing: Sequence[str]) -> None:
    """Check that a response is exactly this package's refusal.

    `limits`: the name, quota per minute and remaining units of each limit, in the order of the headers. `refusing`:
    the names of the limits that refuse.
    """
    assert answer.status == 429
    assert json.decode(answer.body) == problem(*refusing)
    assert items(answer) == [(name, {"r": left, "t": 60}) for name, _, left in limits]
    assert items(answer, "ratelimit-policy") == [(name, {"q": quota, "w": 60}) for name, quota, _ in limits]
    assert dict(answer.headers).keys() == {*FIELDS, "content-length"}
    assert len(answer.headers) == len(FIELDS) + 1
    assert answer.field("retry-after") == ["60"]
    assert answer.field("cache-control") == ["no-store"]
    assert answer.field("content-type") == ["application/problem+json"]
    assert answer.field("content-length") == [str(len(answer.body))]
