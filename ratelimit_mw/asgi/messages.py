"""What stands between a server and an app while a websocket is open, and charges its messages."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from ratelimit_mw.asgi.send import Message, Receive, Send, close_message
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import refusal
from ratelimit_mw.rules.plan import Match, Plan, without_charged

_ENDS: Final = ("websocket.close", "websocket.http.response.start")  # by what an app ends it


async def with_messages(
    request: Request, gate: AsyncGate, state: RateLimitState, receive: Receive, send: Send
) -> tuple[Receive, Send]:
    """The `receive` and `send` of an admitted websocket whose messages are limited: the server's own if none is.

    Keys, costs and tiers are read here, once; so a message costs no more than one call of the store.
    """
    try:
        plan = await gate.plan(request.messages, request)
    except BaseException:  # cancelled: the app is never called, so nothing else tells the followers
        if state.tracker is not None:
            state.tracker.end("cancelled")
        raise
    if not plan.charges and plan.denied is None:
        return receive, send
    websocket = _LimitedWebSocket(gate, request, plan, state, receive, send)
    return websocket.receive, websocket.send


class _LimitedWebSocket:
    """One websocket. `_end`: what the app receives for ever after we have closed it."""

    def __init__(
        self, gate: AsyncGate, request: Request, plan: Plan, state: RateLimitState, receive: Receive, send: Send
    ) -> None:
        self._gate: Final = gate
        self._request: Final = request
        self._match: Final[Match] = request.messages
        self._plan: Final = plan
        self._receive: Final = receive
        self._send: Final = send
        self._outer_state: Final = state.message  # what one of us further out knows of the same message
        self._message_state: Final = RateLimitState(None, gate)
        state.message = self._message_state
        self._pending: tuple[Message, Awaitable[Verdict | None]] | None = None
        self._ended = False  # by the app
        self._end: Message | None = None

    async def receive(self) -> Message:
        """The next message that is admitted; whatever else there is passes as it is."""
        while self._end is None:
            if self._pending is None:
                message = await self._receive()
                if message["type"] != "websocket.receive":
                    return message
                verdict = await self._decide(message)
            else:  # read for a receive that was cancelled before the store had answered
                message, deciding = self._pending
                verdict = await asyncio.shield(deciding)
            self._pending = None
            self._message_state.reset(self._outer_state)
            if verdict is not None:
                self._message_state.record(verdict, self._gate)
                if not verdict.allowed:
                    await self._refuse(verdict)
                    continue
            return message
        return self._end

    async def send(self, message: Message) -> None:
        """Pass on what the app sends, until we have closed: then nobody waits for it."""
        if self._end is not None:
            return
        if message["type"] in _ENDS:
            self._ended = True
        try:
            await self._send(message)
        except Exception:
            if self._end is None:
                raise  # else we have closed while it was on its way

    async def _decide(self, message: Message) -> Verdict | None:
        plan = self._plan if self._outer_state is None else without_charged(self._plan, self._outer_state.charged)
        deciding = self._gate.decide(self._match, plan, self._request)
        if not self._gate.store_awaits and not self._match.may_delay:  # nor can it be cancelled midway
            return await deciding
        task = asyncio.ensure_future(deciding)
        self._pending = message, task
        return await asyncio.shield(task)

    async def _refuse(self, verdict: Verdict) -> None:
        """Close, unless the message is only dropped: nothing is over a limit where none could be asked."""
        if self._ended or (verdict.decisions and not self._match.closes):
            return
        close = close_message(refusal(verdict, "none").status)
        self._end = {**close, "type": "websocket.disconnect"}
        await asyncio.shield(asyncio.ensure_future(self._close(close)))  # begun, it is done, whoever is cancelled

    async def _close(self, message: Message) -> None:
        with suppress(Exception):  # the client may have gone meanwhile
            await self._send(message)
