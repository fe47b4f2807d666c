"""Apps of Starlette and FastAPI, called in this process."""

import asyncio
from collections.abc import Sequence
from typing import Any

import http_sf
import httpx
from msgspec import json

from ratelimit_mw.testing import Clock, RecordingStore
from web.scenario import Answer

Call = str | tuple[str, str]  # a path, which is got, or method and path
FIELDS = ("ratelimit", "ratelimit-policy", "retry-after", "cache-control", "content-type")


def recording(**settings: Any) -> tuple[RecordingStore, dict[str, Any]]:
    """A store, and settings with it."""
    store = RecordingStore(clock=Clock())
    return store, {"limits": [], "store": store, "plain_keys": True, **settings}


def answers(app: Any, *calls: Call, **options: Any) -> list[Answer]:
    """What an app says to one call after the other. `options`: those of httpx."""

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
    """The same, as far as its status."""
    return [answer.status for answer in answers(app, *calls, **options)]


def items(answer: Answer, name: str = "ratelimit") -> list[tuple[str, dict[str, int]]]:
    """A list of a structured field: names, each with its parameters."""
    found: Any = http_sf.parse(", ".join(answer.field(name)).encode(), tltype="list") if answer.field(name) else []
    return list(found)


def taken(store: RecordingStore) -> list[list[str]]:
    """For each time the store was asked, whose buckets: key and quota."""
    return [
        [f"{charge.key} {charge.limit.quota}" for charge in charges] for verb, charges in store.calls if verb == "take"
    ]


def problem(*policies: str, seconds: int = 60) -> dict[str, Any]:
    """The body of a refusal."""
    return {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": f"Try again in {seconds} seconds.",
        "violated-policies": list(policies),
    }


def check_refusal(answer: Answer, limits: Sequence[tuple[str, int, int]], refusing: Sequence[str]) -> None:
    """Exactly our refusal. `limits`: name, quota and what is left, per minute, what binds first."""
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
