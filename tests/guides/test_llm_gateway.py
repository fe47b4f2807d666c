"""Tests the gateway of the guide with OpenAI's own client."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from redis_servers import RedisServer
from web_servers import WebServer, serve_uvicorn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HELLO: Any = [{"role": "user", "content": "Say some words, please."}]  # 4 tokens for the mock model

pytestmark = pytest.mark.once


@pytest.fixture(params=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    store = "memory://"
    if request.param == "redis":
        redis: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
        redis.ask("FLUSHALL")
        store = redis.url
    with serve_uvicorn("llm_gateway:app", EXAMPLES, env={"STORE": store}) as running:
        yield running


def client(server: WebServer, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def left(server: WebServer, key: str) -> dict[str, int]:
    """Return the tokens that are left, by the name of the limit."""
    answer = httpx.get(f"{server.url}/usage", headers={"authorization": f"Bearer {key}"}).json()
    return {one["name"]: one["remaining"] for one in answer["policies"]}


def soon(what: Callable[[], bool]) -> bool:
    """Return whether it holds within a minute. What is left is kept for a second."""
    until = time.monotonic() + 60
    while not (done := what()) and time.monotonic() < until:
        time.sleep(0.1)
    return done


def test_an_answer_costs_the_tokens_that_were_read_and_given(server: WebServer) -> None:
    ann = client(server, "sk-ann").chat.completions
    raw = ann.with_raw_response.create(model="small", messages=HELLO, max_tokens=20)
    usage = raw.parse().usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 20, 24)
    shown = {part.partition(";")[0] for part in raw.headers["ratelimit"].split(", ")}
    assert shown == {'"month"', '"input"', '"output"'}
    assert soon(lambda: left(server, "sk-ann")["month"] == 2000 - 24)
    stream = ann.create(model="small", messages=HELLO, max_tokens=30, stream=True)
    assert [chunk.choices[0].delta.content for chunk in stream] == [f"word{number} " for number in range(30)]
    assert soon(lambda: left(server, "sk-ann")["month"] == 2000 - 24 - 34)


def test_a_client_that_disconnects_pays_what_was_given(server: WebServer) -> None:
    stream = client(server, "sk-ann").chat.completions.create(
        model="small", messages=HELLO, max_tokens=100_000, stream=True
    )
    assert [chunk.choices[0].delta.content for chunk, _ in zip(stream, range(70), strict=False)][-1] == "word69 "
    stream.close()
    assert soon(lambda: left(server, "sk-ann")["month"] < 2000 - 50)  # more than the estimate
    paid = 2000 - left(server, "sk-ann")["month"]
    assert 74 <= paid < 2000
    time.sleep(1.5)
    assert 2000 - left(server, "sk-ann")["month"] == paid  # the model has stopped


def test_a_model_answers_two_at_once_for_all_customers(server: WebServer) -> None:
    ask: Any = {"messages": HELLO, "max_tokens": 100_000, "stream": True}
    with contextlib.ExitStack() as running:
        for key in ("sk-ann", "sk-bob"):
            stream = client(server, key).chat.completions.create(model="small", **ask)
            next(running.enter_context(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client(server, "sk-bob").chat.completions.create(model="small", messages=HELLO)
        assert refused.value.response.headers["retry-after"] == "1"
        client(server, "sk-bob").chat.completions.create(model="large", messages=HELLO)
    again = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-bob", max_retries=20)  # waits for Retry-After
    again.chat.completions.create(model="small", messages=HELLO)


def test_a_month_ends_at_its_quota_and_unknown_customers_are_denied(server: WebServer) -> None:
    ann = client(server, "sk-ann").chat.completions
    for _ in range(10):
        stream = ann.create(model="small", messages=HELLO, max_tokens=196, stream=True)
        stream.response.read()
    assert soon(lambda: left(server, "sk-ann")["month"] == 0)
    with pytest.raises(openai.RateLimitError) as refused:
        ann.create(model="small", messages=HELLO)
    body: Any = refused.value.body
    assert body["violated-policies"] == ["month"]
    with pytest.raises(openai.PermissionDeniedError):
        client(server, "sk-eve").chat.completions.create(model="small", messages=HELLO)
