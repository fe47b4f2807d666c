"""Limits the messages of open websockets, between the server and the app."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from ratelimit_mw.asgi.send import Message, Receive, Send, close_message
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import refusal_response
from ratelimit_mw.rules.overrides import NO_OVERRIDES
from ratelimit_mw.rules.plan import Match, Plan, without_charged

_ENDS: Final = ("websocket.close", "websocket.http.response.start")  # messages with which an app ends the websocket


async def with_messages(
    request: Request, gate: AsyncGate, state: RateLimitState, receive: Receive, send: Send
) -> tuple[Receive, Send]:
    """Return the `receive` and `send` that limit an admitted websocket's messages.

    Returns the server's own `receive` and `send` if no message is limited, or may become so. Keys, costs and tiers are
    evaluated here, once per websocket, and again when the overrides have changed, so that each message needs at most
    one call of the store.
    """
    try:
        planned_at = await gate.refresh()
        plan = await gate.plan(request.messages, request)
    except BaseException:  # canceled: the app is never called, so nothing else ends the tracking
        if state.tracker is not None:
            state.tracker.end("cancelled")
        raise
    if not plan.charges and plan.denied_source is None and gate.rule_set.overrides is NO_OVERRIDES:
        return receive, send
    websocket = _LimitedWebSocket(gate, request, (planned_at, plan), state, receive, send)
    return websocket.receive, websocket.send


class _LimitedWebSocket:
    """One websocket with limited messages."""

    def __init__(
        self,
        gate: AsyncGate,
        request: Request,
        planned: tuple[int, Plan],
        state: RateLimitState,
        receive: Receive,
        send: Send,
    ) -> None:
        self._gate: Final = gate
        self._request: Final = request
        self._match: Final[Match] = request.messages
        self._planned = planned  # the plan, and the number of changes of the overrides when it was made
        self._receive: Final = receive
        self._send: Final = send
        self._outer_state: Final = state.message  # an outer middleware's decisions on the same message
        self._message_state: Final = RateLimitState(None, gate)
        state.ensure_extras().message = self._message_state
        self._pending: tuple[Message, Awaitable[Verdict | None]] | None = None
        self._app_ended = False  # the app has ended the websocket
        self._disconnect: Message | None = None  # what `receive` returns once this class has closed the websocket

    async def receive(self) -> Message:
        """Return the next admitted message. Events other than `websocket.receive` pass unchanged."""
        while self._disconnect is None:
            if self._pending is None:
                message = await self._receive()
                if message["type"] != "websocket.receive":
                    return message
                verdict = await self._decide(message)
            else:  # an earlier receive() read this message, and was canceled before the store replied
                message, deciding = self._pending
                verdict = await asyncio.shield(deciding)
            self._pending = None
            self._message_state.reset(self._outer_state)
            if verdict is not None:
                self._message_state.record(verdict, self._gate)
                if not verdict.allowed:
                    await self._close_after_refusal(verdict)
                    continue
            return message
        return self._disconnect

    async def send(self, message: Message) -> None:
        """Pass on a message of the app. Drops it if this class has closed the websocket."""
        if self._disconnect is not None:
            return
        if message["type"] in _ENDS:
            self._app_ended = True
        try:
            await self._send(message)
        except Exception:
            if self._disconnect is None:
                raise  # otherwise this class closed the websocket while the message was being sent

    async def _decide(self, message: Message) -> Verdict | None:
        deciding = self._take()
        if not self._gate.store_awaits and not self._match.may_delay:  # never suspends, so it cannot be canceled midway
            return await deciding
        task = asyncio.ensure_future(deciding)
        self._pending = message, task
        return await asyncio.shield(task)

    async def _take(self) -> Verdict | None:
        changes = await self._gate.refresh()
        if changes != self._planned[0]:
            self._planned = changes, await self._gate.plan(self._match, self._request)
        plan = self._planned[1]
        if self._outer_state is not None:
            plan = without_charged(plan, self._outer_state.admitted_charges)
        return await self._gate.decide(self._match, plan, self._request)

    async def _close_after_refusal(self, verdict: Verdict) -> None:
        """Close the websocket after a refused message. Do nothing if the message's rule only drops messages.

        `receive` drops the message in either case. A verdict without decisions closes the websocket under every rule:
        the message has no key, or the store failed and `on_store_error` is `deny`.
        """
        if self._app_ended or (verdict.decisions and not self._match.closes):
            return
        message = close_message(refusal_response(verdict, "none").status)
        self._disconnect = {**message, "type": "websocket.disconnect"}
        await asyncio.shield(asyncio.ensure_future(self._close(message)))  # completed even if the app is canceled

    async def _close(self, message: Message) -> None:
        with suppress(Exception):  # the client may have disconnected meanwhile
            await self._send(message)
