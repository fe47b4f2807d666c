"""Gate and AsyncGate: the only two that walk a request through match, ask, plan, take, conclude.

They differ in the `await`s. The one for threads is in a file of its own.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from inspect import isawaitable
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.background import all_done, finished
from ratelimit_mw.base_gate import BaseGate
from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import FAILED, Answers, Call
from ratelimit_mw.corrections import Taken, as_taken
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.held import kept_by_loop
from ratelimit_mw.holding import taken_by, turned_away
from ratelimit_mw.holds import Hold as Held
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.marks import Mark
from ratelimit_mw.matching import Marked
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.policy import Match, Plan, conclude, plan, without_charged
from ratelimit_mw.refusals import log_refusal
from ratelimit_mw.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import AsyncStore
from ratelimit_mw.stores.later import NOT_SENT, Corrections, Told, untold
from ratelimit_mw.stores.loops import OfLoop
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.url import open_async_store
from ratelimit_mw.sync_gate import KEPT, NO_ANSWERS, RAISED, Gate, TellingGate
from ratelimit_mw.turns import Pause, Take, Turns, wish_of
from ratelimit_mw.verdict import Answer, Source, Verdict
from ratelimit_mw.waiting import Hold, asleep, ataking

__all__ = ["AsyncGate", "Gate", "Hold"]

_ENDPOINTS: Final = 4096  # whose limits are remembered


class AsyncGate(BaseGate):
    """For asyncio. `immediate`: a Gate that decides the same without a coroutine, where nothing is waited for.

    `waits`: whether the store may be waited for. `may_hold`: whether rules may have a request
    wait: for its turn, or for a slot.
    """

    _store: AsyncStore
    _answerers: tuple[str, ...] = ("asgi", "plain")
    _places = 1000
    _allowed = "an ASGI app, or a callable (request, verdict)"
    keeps = staticmethod(kept_by_loop)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        store = (
            open_async_store(settings.store, settings.store_timeout)
            if isinstance(settings.store, str)
            else settings.store
        )
        if not isinstance(store, AsyncStore):
            raise ConfigError(
                f"store: found {type(store).__name__}, allowed is a URL or an AsyncStore with atake(): ASGI awaits"
            )
        self._take_over(store)
        memory = isinstance(store, MemoryStore) and type(store).atake is MemoryStore.atake  # not a subclass's own
        waits = not memory or self._rules.calls or self._rules.waits or self._rules.queues
        self.waits: Final = not memory
        self.may_hold: Final = self._rules.waits or self._rules.queues
        at_once = replace(settings, store=store, on_refused=None, max_waiting=0)  # its thread is the loop's
        kind = Gate if settings.on_decision is None else TellingGate
        self.immediate: Final = None if waits else kind(at_once, self._rules, self._local)
        if self.immediate is not None:
            self.immediate.keeps = kept_by_loop
        self.held: Final = lru_cache(_ENDPOINTS)(self._held)
        self._corrections: Final = OfLoop(lambda: Corrections(store, settings.store_timeout))
        self._loop: asyncio.AbstractEventLoop | None = None  # where such a store was asked last
        self._take: Final = store.atake if getattr(store, "ends_in_time", False) else self._take_in_time
        self._reserve: Final = ataking(store, self._take, self._freed)

    def _held(
        self, marks: tuple[Mark, ...], among: tuple[Mark, ...], name: str, shown: str
    ) -> tuple[Marked, Gate | None]:
        """Compile some marks among all of an endpoint; the second result is the gate that needs no coroutine, if any.

        `name`, `shown`: see `Rules.compiled`.
        """
        compiled = zip(among, self.compiled(among, name, shown), strict=True)
        marked = tuple(ruled for mark, ruled in compiled if mark in marks)
        awaited = any(one.lines.calls or one.lines.waits or one.lines.queues for one in marked)
        return marked, None if awaited else self.immediate

    async def admit(self, request: Request, marked: Marked = (), hold: Hold = asleep) -> Verdict | None:
        """The verdict on a request; None where nothing is limited. `marked`: what stands on its endpoint.

        `hold`: how a request waits; what it raises, which ends the wait early, is raised again.
        """
        match = self._rules.match(request, marked)
        if match is None:
            return None
        request.messages = match.messages
        if match.calls and match.reads_user:
            request.user  # noqa: B018  # a face that has to await it begins anew: before callables are asked, not after
        asked = await self.planned(match, request)
        if (outer := request.outcome) is not None and outer.verdict is not None:
            asked = without_charged(asked, outer.charged)
        verdict = await self.decided(match, asked, request, hold)
        if match.follows and verdict is not None and verdict.allowed:
            self._follow(request)
        return verdict

    def admit_client(self, client: str | None, method: str | None) -> Awaitable[Verdict | None] | None:
        """See `Gate.admit_client`: what it says is to come, as one coroutine more would cost each request."""
        of_client = self._rules.of_client
        if of_client is None or method == "OPTIONS" or self._tell is not None:
            return None
        return self._decided_of_client(of_client[client])

    async def planned(self, match: Match, request: Request) -> Plan:
        """What the store is to be asked."""
        return plan(match, request, await _aask(match.calls, request) if match.calls else NO_ANSWERS)

    async def decided(self, match: Match, asked: Plan, request: Request, hold: Hold = asleep) -> Verdict | None:
        """The verdict on what is asked, when its turn has come; None where nothing is.

        Never raises for what a store does. `hold`: see `admit`.
        """
        began = perf_counter() if self._tell is not None else 0.0
        patient = match.waits and any(charge.patience_us for charge in asked.charges)
        who = self._who(asked, request) if patient else ()
        if patient:
            asked = self.room.asked(asked, who)
        in_turn = self._decided_in_turn(match, asked, request, hold) if match.queues else self._decided(match, asked)
        verdict = await in_turn
        if patient and verdict is not None and verdict.delay:
            verdict = await self._placed(verdict, who)
        held = self._hold(match, verdict, request) if match.holds else None
        if self._tell is not None:
            self._tell_decision(verdict, request, began)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        if patient and verdict is not None and verdict.delay:
            await self._wait(verdict, hold, held, who)
        return verdict

    async def _placed(self, verdict: Verdict, who: Sequence[str]) -> Verdict:
        """See `Gate`."""
        if self.room.enter(who):
            return verdict
        await finished(self._undo(verdict, None))
        return turned_away(verdict)

    async def _wait(self, verdict: Verdict, hold: Hold, held: Held | None, who: Sequence[str]) -> None:
        """See `Gate`."""
        try:
            await hold(verdict.delay)
        except (asyncio.CancelledError, Exception):
            await finished(self._undo(verdict, held))
            raise
        finally:
            self.room.leave(who)

    async def _undo(self, verdict: Verdict, held: Held | None) -> None:
        """See `Gate`."""
        if held is not None:
            held.among.end(held)
        await self._give_back([taken_by(self, verdict)])
        self._freed(verdict)

    async def _decided_of_client(self, asked: Plan) -> Verdict | None:
        """What `_decided` comes down to where one charge is asked, in short."""
        if asked.alone:
            try:
                (decision,) = decisions = await self._take(asked.charges)
                source = decisions.source if type(decisions) is Answer else "store"
                alone = Verdict(decision.allowed, asked.charges, decisions, asked.match.rule, source, asked.policies)
                if self._learns:
                    self._learn(asked, decisions, alone)
                verdict: Verdict | None = alone
            except Exception as error:  # noqa: BLE001  # whatever a store raises or answers, the request is answered
                verdict = self._without_store(asked.match, asked, error)
        else:
            verdict = await self._decided(asked.match, asked)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        return verdict

    async def _decided(self, match: Match, asked: Plan) -> Verdict | None:
        if not asked.charges:
            return conclude(match, asked, ()) if asked.denied else None
        try:
            take = self._reserve if match.waits or match.holds else self._take
            decisions = await take(asked.charges)
            verdict = conclude(match, asked, decisions)
            if self._learns:
                self._learn(asked, decisions, verdict)
        except Exception as error:  # noqa: BLE001  # whatever a store raises or answers, the request is answered
            return self._without_store(match, asked, error)
        return verdict

    async def _decided_in_turn(self, match: Match, asked: Plan, request: Request, hold: Hold) -> Verdict | None:
        """See `Gate`. A request that is cancelled, or whose `hold` raises, leaves the line."""
        wish = wish_of(asked, lambda: self._who(asked, request))
        if wish is None:
            return await self._decided(match, asked)
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # in a loop that has ended nothing waits
                loop.call_soon_threadsafe(lambda: None if woken.done() else woken.set_result(None))

        with closing(Turns(self._queues, match, asked, wish, wake).steps()) as steps:
            answer: Any = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    verdict: Verdict | None = end.value
                    return verdict
                if isinstance(step, Take):
                    answer = await self._decided(match, step.asked)
                elif isinstance(step, Pause):
                    await hold(step.seconds, woken)
                    woken = loop.create_future()
                else:
                    try:
                        async with asyncio.timeout(self.settings.store_timeout):
                            answer = await self._store.apeek(step.asked.charges)
                    except Exception as error:  # noqa: BLE001  # whatever a store raises, the request is answered
                        return self._without_store(match, asked, error)

    async def _give_back(self, steps: Sequence[Taken]) -> None:
        """See `Gate`."""
        for gate, source, charges in steps:
            try:
                async with asyncio.timeout(self.settings.store_timeout):
                    await gate.holds(source).asettle(charges)
            except Exception as error:  # noqa: BLE001  # whatever a store raises, or one that cannot be awaited
                warn_rarely("store", KEPT, error)

    def correct(
        self,
        source: Source,
        charges: Sequence[Charge],
        loop: asyncio.AbstractEventLoop | None = None,
        told: Told = untold,
    ) -> None:
        """See `Gate.correct`. Nobody waits: what has to be awaited is sent in a task of the loop, together."""
        if source == "local" or not self.waits:
            taken: Sequence[Charge] = ()
            try:
                taken = as_taken(charges, self.holds(source).settle(charges))  # type: ignore[union-attr]  # which is in memory
            except Exception as error:  # noqa: BLE001  # a subclass's own
                warn_rarely("settle", NOT_SENT, type(error).__name__)
            told(taken)
            return
        try:
            corrections = self._corrections.get()
        except RuntimeError:  # a thread without a loop, such as that of a plain endpoint
            loop = loop or getattr(self._store, "loop", None) or self._loop
            if loop is None or loop.is_closed():
                warn_rarely("settle", NOT_SENT, "there is no event loop")
                told(())
            else:
                loop.call_soon_threadsafe(lambda: self._corrections.get().add(charges, told))
        else:
            corrections.add(charges, told)

    async def _take_in_time(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Ask a store that makes no promise of its own about how long it takes."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.settings.store_timeout):
            return await self._store.atake(charges)

    async def close(self) -> None:
        """Send what is to be given back or corrected yet, and close the store if it was made here."""
        await all_done(self.settings.store_timeout)
        await self._corrections.get().done()
        if self._owns_store:
            await self._store.aclose()


async def _aask(calls: Sequence[Call], request: Request) -> Answers:
    answers: dict[Call, Any] = {}
    for call in calls:
        try:
            answer = call(request)
            answers[call] = await answer if isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001  # a callable that raises never frees a request
            warn_rarely(name_of(call), RAISED, error=error)
            answers[call] = FAILED
    return answers
