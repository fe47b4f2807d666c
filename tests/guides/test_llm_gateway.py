"""Tests the gateway of the guide with OpenAI's own client."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from web_servers import WebServer, serve_uvicorn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HELLO: Any = [{"role": "user", "content": "Say some words, please."}]  # 4 tokens for the mock model


@pytest.fixture
def server() -> Iterator[WebServer]:
    with serve_uvicorn("llm_gateway:app", EXAMPLES) as running:
        yield running


Open = Callable[..., openai.OpenAI]


@pytest.fixture
def client(server: WebServer) -> Iterator[Open]:
    """Yield a function that returns a client of a customer. It retries only if it is told to."""
    with contextlib.ExitStack() as stack:
        yield lambda key, retries=0: stack.enter_context(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries)
        )


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


def test_an_answer_costs_the_tokens_that_were_read_and_given(server: WebServer, client: Open) -> None:
    ann = client("sk-ann").chat.completions
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


def test_a_client_that_disconnects_pays_what_was_given(server: WebServer, client: Open) -> None:
    stream = client("sk-ann").chat.completions.create(model="small", messages=HELLO, max_tokens=100_000, stream=True)
    assert [chunk.choices[0].delta.content for chunk, _ in zip(stream, range(70), strict=False)][-1] == "word69 "
    stream.close()
    assert soon(lambda: left(server, "sk-ann")["month"] < 2000 - 50)  # more than the estimate
    paid = 2000 - left(server, "sk-ann")["month"]
    assert 74 <= paid < 2000
    time.sleep(1.5)
    assert 2000 - left(server, "sk-ann")["month"] == paid  # the model has stopped


def test_a_model_answers_two_at_once_for_all_customers(server: WebServer, client: Open) -> None:
    ask: Any = {"messages": HELLO, "max_tokens": 100_000, "stream": True}
    with contextlib.ExitStack() as running:
        for key in ("sk-ann", "sk-bob"):
            stream = client(key).chat.completions.create(model="small", **ask)
            next(running.enter_context(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client("sk-ann").chat.completions.create(model="small", messages=HELLO)
        assert refused.value.response.headers["retry-after"] == "1"
        assert str(refused.value) == "Error code: 429 - The quota of model is used up."
        assert soon(lambda: left(server, "sk-ann")["month"] == 2000 - 50)  # the estimate of the stream that runs
        client("sk-bob").chat.completions.create(model="large", messages=HELLO)
    again = client("sk-bob", 20)  # waits for Retry-After
    again.chat.completions.create(model="small", messages=HELLO)


def test_a_prompt_without_a_length_is_paid_for_by_the_next_one(server: WebServer) -> None:
    messages = [{"role": "user", "content": "word " * 40_000}]  # twice the quota of a minute
    prompt = json.dumps({"model": "small", "max_tokens": 1, "messages": messages})
    url, headers = f"{server.url}/v1/chat/completions", {"authorization": "Bearer sk-bob"}

    def ask() -> httpx.Response:
        return httpx.post(url, content=iter([prompt.encode()]), headers=headers)

    assert ask().status_code == 200
    assert soon(lambda: left(server, "sk-bob")["input"] == 0)
    refused = ask()
    assert (refused.status_code, refused.json()["error"]["message"]) == (429, "The quota of input is used up.")


def test_a_month_ends_at_its_quota_and_unknown_customers_are_denied(server: WebServer, client: Open) -> None:
    ann = client("sk-ann").chat.completions
    for _ in range(10):
        stream = ann.create(model="small", messages=HELLO, max_tokens=196, stream=True)
        stream.response.read()
    assert soon(lambda: left(server, "sk-ann")["month"] == 0)
    with pytest.raises(openai.RateLimitError) as refused:
        ann.create(model="small", messages=HELLO)
    assert str(refused.value) == "Error code: 429 - The quota of month is used up."
    with pytest.raises(openai.PermissionDeniedError, match="Unknown API key"):
        client("sk-eve").chat.completions.create(model="small", messages=HELLO)


def test_the_gateway_answers_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", "redis://127.0.0.1:9/0")  # nothing listens there
    with serve_uvicorn("llm_gateway:app", EXAMPLES) as server:
        ann = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-ann", max_retries=0)
        usage = ann.chat.completions.create(model="small", messages=HELLO, max_tokens=20).usage
        assert usage is not None
        assert usage.total_tokens == 24
