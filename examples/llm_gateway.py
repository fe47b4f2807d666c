"""uvicorn examples.llm_gateway:app"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import StreamingResponse

from ratelimit_mw import AsyncLimiter, Concurrency, StoreError
from ratelimit_mw.fastapi import RateLimitMiddleware

CUSTOMERS = {"sk-ann": (2_000, 15), "sk-bob": (1_000_000, 1)}  # tokens a month, billing day
URL = os.environ.get("STORE", "memory://")
slots, app = AsyncLimiter(URL, name="slots"), FastAPI()


def caller(request: Any) -> Any:
    key = (request.header("authorization") or "").removeprefix("Bearer ")
    return key if key in CUSTOMERS else None


def limits(request: Any) -> list[dict[str, Any]]:
    tokens, day = CUSTOMERS.get(caller(request), (0, 1))
    size = 1 + int(request.header("content-length") or 0) // 4  # tokens of the prompt, about; the body is not read yet
    return [
        {"limit": "20000/minute using gcra", "name": "input", "cost": size},
        {"limit": "5000/minute using gcra", "name": "output", "cost": 50},
        {"limit": f"{tokens}/month using calendar_window from {day}", "name": "month", "cost": 50},
    ]


async def slot_of_model(request: Request) -> AsyncIterator[None]:
    model = (await request.json())["model"]
    request.state.ratelimit.settle(0)  # a refusal costs no tokens; `chat` settles an answer
    async with AsyncExitStack() as held:  # until the answer is sent
        with suppress(StoreError):  # without Redis, models answer any number at once
            await held.enter_async_context(slots.slot(Concurrency(2, name="model"), model))
        yield


def error(_: Any, verdict: Any) -> tuple[int, dict[str, str], str]:
    status = 429 if verdict.decisions else 403
    text = f"The quota of {verdict.limit_name} is used up." if verdict.decisions else "Unknown API key."
    return status, {"Content-Type": "application/json"}, json.dumps({"error": {"message": text}})


@app.post("/v1/chat/completions", dependencies=[Depends(slot_of_model)])
async def chat(request: Request) -> Any:
    asked, given = await request.json(), list[str]()
    read = sum(len(message["content"].split()) for message in asked["messages"])

    async def tokens() -> AsyncIterator[str]:
        try:
            for number in range(asked.get("max_tokens", 50)):  # the model
                await asyncio.sleep(0.01)
                given.append(f"word{number} ")
                yield given[-1]
        finally:  # also if the client disconnects
            request.state.ratelimit.settle({"input": read, "output": len(given), "month": read + len(given)})

    head = {"id": "1", "created": 0, "model": asked["model"]}
    if asked.get("stream"):
        return StreamingResponse(events(head, tokens()), media_type="text/event-stream")
    text = "".join([token async for token in tokens()])
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    used = {"prompt_tokens": read, "completion_tokens": len(given), "total_tokens": read + len(given)}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": used}


async def events(head: dict[str, Any], tokens: AsyncIterator[str]) -> AsyncIterator[str]:
    async for token in tokens:
        choice = {"index": 0, "delta": {"content": token}}
        yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


app.add_middleware(
    RateLimitMiddleware, limits=limits, key=caller, missing_key="deny", on_refused=error, store=URL, usage_path="/usage"
)
