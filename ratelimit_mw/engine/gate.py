"""The two gates: `Gate` decides requests in threads, `AsyncGate` in asyncio. See `engine.flow`."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import drain, in_event_loop, run
from ratelimit_mw.core.verdict import Source, Verdict, verdict_of
from ratelimit_mw.engine.base_gate import ASGI, WSGI, Integration
from ratelimit_mw.engine.charging import charge
from ratelimit_mw.engine.flow import Flow
from ratelimit_mw.engine.limits_of_calls import Key, Limits
from ratelimit_mw.engine.live import LIVE
from ratelimit_mw.engine.offenders import LoopReporter, ThreadReporter
from ratelimit_mw.engine.refresh import Refresher
from ratelimit_mw.engine.runtime import AsyncioRuntime, Sleep, ThreadRuntime, async_sleep
from ratelimit_mw.engine.settlement import MAY_BE_LOST, SettlementQueue
from ratelimit_mw.engine.shedding import leave
from ratelimit_mw.engine.slots import ASYNC_SLOT_RENEWER
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.rules.way import Way
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import check_no_async_callables
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.url import open_async_store, open_store


class Gate(Flow):
    """Decides requests in threads. `admit` does not raise, whatever the client sends."""

    _store: Store
    runtime: ThreadRuntime
    _awaits_callables = False
    _default_max_waiting = 2  # requests; each blocks a thread of the server, and waitress has 4

    def __init__(
        self,
        settings: Settings,
        rules: RuleSet | None = None,
        fallback: FallbackStore | None = None,
        *,
        integration: Integration = WSGI,
        is_nested: bool = False,
        before: "Gate | None" = None,
    ) -> None:
        super().__init__(settings, rules, fallback, integration=integration, is_nested=is_nested, before=before)
        if rules is None:  # if rules are passed, an AsyncGate made them, and awaits their callables
            check_no_async_callables(self.rule_set.limit_sets)
        store = self._open(open_store)
        if not isinstance(store, Store):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or a Store with take(); WSGI cannot await",
                code="RL-040",
            )
        self._use_store(store)
        self.runtime = ThreadRuntime(store)
        self._succeed_nested()

    def admit(self, request: Request, endpoint_rules: EndpointRules = ()) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint."""
        return run(self._admit(request, endpoint_rules))

    def take(self, way: Way, charges: Sequence[Charge], raw: Any = None) -> Verdict | None:
        """Return the verdict on the charges that `RuleSet.short_way` found; None if nothing limits the request.

        `raw`: the request, if its refusal is to be reported, see `request_line`.
        """
        if self._refresher is not None and self._refresher.clock() >= self._refresher.due:
            self._refresher.look_in_thread()
        if not charges:
            verdict = way.verdict
        else:
            try:
                verdict = verdict_of(charges, self._store.take(charges), way.rule, "store", way.policies)
                if self._needs_fallback and (self._fallback.refusals or not verdict.allowed):
                    self._inform_fallback(verdict)
            except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                verdict = self._without_store(way.match, way.plan(charges), error)
        if verdict is None:
            return None
        if self._observe is not None:
            self._observe(verdict)
        if not verdict.allowed:
            self.report_refusal(verdict, raw)
        return verdict

    def charge(self, limits: Limits, key: Key, cost: int, state: RateLimitState | None) -> Verdict:
        """See `RateLimitState.charge`."""
        return run(charge(self, limits, key, cost, state))

    async def _look(self, refresher: Refresher) -> None:
        refresher.look_in_thread()

    def settle(self, source: Source, charges: Sequence[Charge], loop: object = None) -> None:  # noqa: ARG002  # used by AsyncGate
        """Settle the charges of a request, once its true cost is known. A failure of the store is logged."""
        self._settle_now(source, charges)

    def close(self) -> None:
        """Send the latest refusals, then close the store if this gate created it."""
        if isinstance(self.reporter, ThreadReporter):
            self.reporter.flush()
        if self.settings.metrics and not self._is_inner:
            LIVE.end()
        if self._owns_store:
            self._store.close()


class AsyncGate(Flow):
    """Decides requests in asyncio.

    `sync_gate`: a `Gate` that decides without an await, in the thread of the event loop. None if the store suspends, or
    a rule delays or queues requests or calls a callable.

    `store_awaits`: whether the store must be awaited. `may_hold`: whether a rule may delay a request or let it wait for
    a slot.
    """

    _store: AsyncStore
    runtime: AsyncioRuntime
    _awaits_callables = True
    _default_max_waiting = 1000

    def __init__(
        self,
        settings: Settings,
        *,
        integration: Integration = ASGI,
        is_nested: bool = False,
        before: "AsyncGate | None" = None,
    ) -> None:
        super().__init__(settings, integration=integration, is_nested=is_nested, before=before)
        store = self._open(open_async_store)
        if not isinstance(store, AsyncStore):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or an AsyncStore with atake(): ASGI awaits",
                code="RL-040",
            )
        self._use_store(store)
        suspends = self._declared.suspends
        limit_sets = self.rule_set.limit_sets
        needs_coroutine = suspends or any(limit_set.may_await for limit_set in limit_sets)
        self.store_awaits: Final = suspends
        self.may_hold: Final = any(limit_set.may_delay or limit_set.has_queue for limit_set in limit_sets)
        # `max_waiting=0`, because a delay would block the loop
        sync_settings = replace(settings, store=store, on_refused=None, max_waiting=0, remember_refused=0)
        self.sync_gate: Final = None if needs_coroutine else Gate(sync_settings, self.rule_set, self._fallback)
        if self.sync_gate is not None:
            self.sync_gate.runtime.slot_renewer = ASYNC_SLOT_RENEWER  # it runs in the thread of the loop
            self.sync_gate.reporter, self.sync_gate.guard = self.reporter, self.guard
        if self._lasting.settlements is None:
            self._lasting.settlements = PerLoop(lambda: SettlementQueue(store, settings.store_timeout))
        self._settlement_queues: Final[PerLoop[SettlementQueue]] = self._lasting.settlements
        self.runtime = AsyncioRuntime(store, settings.store_timeout, self._wake_waiters)
        if before is not None:
            self.runtime.loop = before.runtime.loop
        self._succeed_nested()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that used the store last, else the one of the middleware's start, if it is known."""
        return self._declared.loop or self.runtime.loop

    def compile_for_endpoint(
        self,
        endpoint_limits: tuple[EndpointLimit, ...],
        all_limits: tuple[EndpointLimit, ...],
        name: str,
        display_name: str,
    ) -> tuple[EndpointRules, Gate | None]:
        """Compile some limits of an endpoint. Returns `sync_gate` as well, if nothing must be awaited for them.

        `all_limits`: all limits of the endpoint. `name`, `display_name`: see `RuleSet.compile_endpoint_limits`.
        """
        all_rules = self.rule_set.report_endpoint(self.rule_set.compile_endpoint_limits(all_limits, name, display_name))
        compiled = zip(all_limits, all_rules, strict=True)
        endpoint_rules = tuple(rule for endpoint_limit, rule in compiled if endpoint_limit in endpoint_limits)
        needs_await = any(rule.limit_set.may_await for rule in endpoint_rules)
        return endpoint_rules, None if needs_await else self.sync_gate

    async def admit(
        self, request: Request, endpoint_rules: EndpointRules = (), sleep: Sleep = async_sleep
    ) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint.

        `sleep`: delays the request. An exception that it raises ends the delay, and passes through to the caller.
        """
        return await self._admit(request, endpoint_rules, sleep)

    async def take(self, way: Way, charges: Sequence[Charge], raw: Any = None) -> Verdict | None:
        """See `Gate.take`."""
        if self._refresher is not None and self._refresher.clock() >= self._refresher.due:
            self._refresher.look_in_loop()
        if not charges:
            verdict = way.verdict
        else:
            try:
                verdict = verdict_of(charges, await self.runtime.take(charges), way.rule, "store", way.policies)
                if self._needs_fallback and (self._fallback.refusals or not verdict.allowed):
                    self._inform_fallback(verdict)
            except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                verdict = self._without_store(way.match, way.plan(charges), error)
            except BaseException:  # canceled
                if self.guard is not None:
                    leave(self.guard, raw)
                raise
        if verdict is None:
            return None
        if self._observe is not None:
            self._observe(verdict)
        if not verdict.allowed:
            self.report_refusal(verdict, raw)
        return verdict

    def charge(self, limits: Limits, key: Key, cost: int, state: RateLimitState | None) -> Any:
        """See `RateLimitState.charge`."""
        work = charge(self, limits, key, cost, state)
        if in_event_loop():
            return work
        if self.loop is None or not self.loop.is_running():
            return run(work)  # the memory store needs no loop
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _look(self, refresher: Refresher) -> None:
        first_look = refresher.look_in_loop()
        if first_look is not None:
            await asyncio.wait([first_look])

    def settle(self, source: Source, charges: Sequence[Charge], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """See `Gate.settle`. Returns at once; a task of the loop batches and sends settlements that must be awaited."""
        if source == "local" or not self.store_awaits:
            self._settle_now(source, charges)
            return
        try:
            queue = self._settlement_queues.get()
        except RuntimeError:  # a thread without a loop, e.g. the thread of a sync endpoint
            loop = loop or self.loop
            if loop is None or loop.is_closed():
                warn_throttled("settle", MAY_BE_LOST, "no event loop is running", code="RL-206")
            else:
                loop.call_soon_threadsafe(lambda: self._settlement_queues.get().add(charges))
        else:
            queue.add(charges)

    async def close(self) -> None:
        """Send pending refunds, settlements and refusals, then close the store if this gate created it."""
        await drain(self.settings.store_timeout)
        await self._settlement_queues.get().drain()
        if isinstance(self.reporter, LoopReporter):
            await self.reporter.flush()
        if self.settings.metrics and not self._is_inner:
            await LIVE.aend()
        if self._owns_store:
            await self._store.aclose()
