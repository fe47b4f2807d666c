"""The base class of the gates: settings, rules, stores, hooks and refusals."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Self

from msgspec.structs import replace

from ratelimit_mw.checks.calendar_limits import calendar_findings, inspect_for_calendar, warn_of_chosen
from ratelimit_mw.checks.deployment import switched_off
from ratelimit_mw.checks.rules import unseen_messages, unused_slot_options
from ratelimit_mw.checks.workers import configured_workers, forgeable_address_findings, multiple_workers_finding
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.events import Hook
from ratelimit_mw.core.log import Finding, error_summary, warn, warn_or_fail
from ratelimit_mw.core.memo import Budget, Memo, cached_property
from ratelimit_mw.core.signatures import callable_name, reject_async
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.engine.delays import DelayCapacity, Delayed
from ratelimit_mw.engine.entrance import request_line
from ratelimit_mw.engine.live import LIVE, board_of, local_board
from ratelimit_mw.engine.observation import digest, observer, record_policy, watch_store
from ratelimit_mw.engine.offenders import RefusalReporter, reporter_for
from ratelimit_mw.engine.overload import OverloadGuard
from ratelimit_mw.engine.refresh import Refresher, refresher_of
from ratelimit_mw.engine.refusal_log import log_refusal
from ratelimit_mw.engine.shedding import guard_of, leave
from ratelimit_mw.engine.slot_queue import Queues
from ratelimit_mw.engine.usage import UsageAnswers
from ratelimit_mw.http.callables import resolve_callable
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.on_refused import RefusalHandler, refusal_handler
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import Response, refusal_response
from ratelimit_mw.http.routes import app_cache
from ratelimit_mw.rules.overrides import NO_OVERRIDES
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import unread_variables
from ratelimit_mw.settings.rule import placed
from ratelimit_mw.stores import AsyncStore, Store, check_is_store
from ratelimit_mw.stores.contract import declared
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.url import open_unchecked

NESTED_GATES: Final = "gates"  # the name of a gate's `app_cache` of those with stores of their own, by store
_MAX_CACHED_ENDPOINTS: Final = 4096  # endpoints whose compiled limits are cached
_UNEVEN_LOAD: Final = Finding(
    "store: in a cluster without key_secret, a client that can choose its identity can choose its slot, and so "
    "put all load on one node; set key_secret",
    weakens_limits=False,
    code="RL-107",
)
_KEEPS_NO_REFUSALS: Final = Finding(
    "remember_refused: the store cannot keep refusals, so `top` and `tail` will show none; use Redis, or set it to 0",
    weakens_limits=False,
    code="RL-131",
)


class Integration(NamedTuple):
    """The integration that a gate decides for.

    `handler_kinds`: the kinds of `on_refused` that it supports. `expected_handler`: what an error says is expected.
    `sees_no_messages`: what enforces the limits, if it does not see the messages of websockets. `probes_store`: whether
    to open files and `metrics_folder` at startup, and with `strict` to probe a server.
    """

    handler_kinds: tuple[str, ...]
    expected_handler: str
    sees_no_messages: str | None = None
    probes_store: bool = True


ASGI: Final = Integration(("asgi", "plain"), "an ASGI app, or a callable (request, verdict)")
WSGI: Final = Integration(("wsgi", "plain"), "a WSGI app, or a callable (request, verdict)", "a limiter under WSGI")


class Lasting:
    """What outlives reloads: the store of a gate, and what counts requests that are under way.

    `store`, `settlements`: None until the first gate has made them. `settlements`: of an `AsyncGate`, by event loop.
    `losses`: how the store may lose units, unless that was reported; None until a gate may have calendar limits.
    """

    def __init__(self) -> None:
        self.delayed: Final = Delayed()
        self.queues: Final = Queues()
        self.store: Any = None
        self.settlements: Any = None
        self.losses: list[str] | None = None


def _compile(place: tuple[Any, ...]) -> Any:
    compile_limits, *arguments = place
    return compile_limits(*arguments)


class BaseGate:
    """The common part of `Gate` and `AsyncGate`.

    `rule_set`: the compiled settings. `guard`: of the latency goal; None without one. `delay_capacity`: bounds
    how many requests are delayed at once. `reporter`:
    remembers refusals, if `remember_refused` is set. `is_nested`: an outer gate of the same settings has reported the
    findings of the start. `findings`: those that this gate has reported. `compiled`: caches the compiled limits of
    endpoints: `compiled[compile, *place]` is `compile(*place)`.

    `before`, of the constructor: the gate that this one replaces in a reload. What is `Lasting` is taken over. So
    are local counts and refusals to report, unless their settings changed.
    """

    _default_max_waiting: int  # requests; replaces a `max_waiting` of None
    _store: Store | AsyncStore
    _awaits_callables: ClassVar[bool]
    _refresher: Refresher | None  # None if the store keeps no overrides
    reporter: RefusalReporter | None = None

    def __init__(
        self,
        settings: Settings,
        rules: RuleSet | None = None,
        fallback: FallbackStore | None = None,
        *,
        integration: Integration,
        is_nested: bool = False,
        before: Self | None = None,
    ) -> None:
        self.settings: Final = settings
        self._integration: Final = integration
        self._is_nested: Final = is_nested
        self._is_inner: Final = is_nested or rules is not None  # of another gate of the same app
        self._before = before
        self._lasting: Final[Lasting] = Lasting() if before is None else before._lasting  # noqa: SLF001  # the same class
        self.rule_set: Final = rules or RuleSet(settings)
        if before is not None:
            self.rule_set.succeed(before.rule_set)
        guard_before = None if before is None else before.guard
        self.guard: OverloadGuard | None = None if self._is_inner else guard_of(settings, guard_before)
        self.compiled: Final = Memo[tuple[Any, ...], Any](_compile, Budget(_MAX_CACHED_ENDPOINTS))
        findings: list[Finding] = []
        if not (rules or is_nested):
            findings += [*switched_off(settings), *unread_variables(), *self.rule_set.findings]
            findings += forgeable_address_findings()
        if integration.sees_no_messages and not (rules or is_nested):
            findings += unseen_messages(settings, integration.sees_no_messages)
        if settings.store == "memory://" and (workers := configured_workers()) > 1:
            findings.append(multiple_workers_finding(workers))
        self.findings: Final[Sequence[Finding]] = findings
        warn_or_fail(findings, strict=settings.strict)
        if before is not None and before.settings.local_share == settings.local_share:
            fallback = before._fallback  # noqa: SLF001  # the same class
        self._fallback: Final[FallbackStore] = FallbackStore(settings.local_share) if fallback is None else fallback
        self._on_decision: Final = _hook("on_decision", settings.on_decision)
        self._observe: Final = observer(settings, opens_folder=integration.probes_store and rules is None)
        if rules is None and before is None:  # a reload records them itself, once they are in force
            record_policy(settings)
        # `_use_store` resets it to None if the store calls the hook itself
        self._on_store_event = _hook("on_store_event", settings.on_store_event)
        self._owns_store: Final = isinstance(settings.store, str)
        self.refusal_handler: Final = self._build_refusal_handler(settings.on_refused)
        # by the id of the value in the settings, which live as long
        self._rule_handlers: Final[dict[int, RefusalHandler | None]] = {}
        for place, rule in placed(() if rules is not None else settings.parsed_rules()):
            with error_location(place):
                self._rule_handlers[id(rule.on_refused)] = self._build_refusal_handler(rule.on_refused)
        self.delay_capacity: DelayCapacity = DelayCapacity(
            self._default_max_waiting if settings.max_waiting is None else settings.max_waiting,
            self._lasting.delayed,
        )
        self._queues: Final = self._lasting.queues
        self._usage_answers: Final = UsageAnswers() if settings.usage_path else None
        self._address_key: Final = Key("ip", settings.ipv6_prefix)

    @property
    def has_short_way(self) -> bool:
        """Whether `RuleSet.short_way` and `take` may decide a request; else every request needs `admit`.

        `on_decision` receives the request. With a latency goal, all but ASGI need the tracker of the longer way.
        """
        measures = self.guard is None or self._integration is ASGI
        return self.rule_set.has_short_way and self._on_decision is None and measures

    def warn_of_unused_slot_options(self) -> None:
        """Warn about options of slots that have no effect. For integrations whose endpoint limits cannot have slots."""
        warn_or_fail(unused_slot_options(self.rule_set.limit_sets), strict=self.settings.strict)

    def default_refusal(self, request: Request, verdict: Verdict) -> Response:
        """Return the default response to a refused request.

        Omits the RateLimit fields if outer middleware adds them.
        """
        outer = request.outer  # the `RateLimitState` of outer gates; None without any
        style = "none" if outer is not None and outer.headers_claimed else self.settings.headers
        wait = 0.0 if outer is None else outer.wait
        return refusal_response(verdict, style, self.settings.jitter, wait, self.settings.slot_retry)

    def report_refusal(self, verdict: Verdict, raw: Any) -> None:
        """Log a refused request, and remember it if `remember_refused` is set. `raw`: see `request_line`."""
        log_refusal(verdict, self.settings.key_secret)
        if self.reporter is not None:
            self.reporter.add(verdict, request_line(raw))
        if self.guard is not None:
            leave(self.guard, raw)

    def store_for(self, source: Source) -> Store | AsyncStore:
        """Return the store that was charged for a verdict of this source."""
        return self._fallback if source == "local" else self._store

    @cached_property
    def nested(self) -> Self:
        """A gate for limits attached to endpoints.

        Shares this gate's store and settings but none of its rules, which were checked already.
        """
        return self.nested_with(self._store)

    def nested_with(self, store: Any, before: Self | None = None) -> Self:
        """Return a gate like `nested`, with another store. `before`: the gate that it replaces in a reload."""
        overrides: dict[str, Any] = {
            "limits": [],
            "concurrent": 0,
            "app_limits": (),
            "messages": (),
            "rules": (),
            "blocklist": (),
            "proxy_header": self.settings.proxy_header if self.settings.trusted_proxies else "x-forwarded-for",
            "usage_path": None,
            "remember_refused": 0,  # the reporter of this gate is used
            "strict": False,  # this gate has reported the findings of startup
        }
        settings = replace(self.settings, **overrides, store=store)
        nested = type(self)(settings, integration=self._integration, is_nested=True, before=before)
        nested.delay_capacity, nested.reporter = self.delay_capacity, self.reporter
        nested.rule_set.share_with_outer(self.rule_set)
        return nested

    def _succeed_nested(self) -> None:
        """Replace the nested gates of the gate before, and let go of that gate. The last step of a constructor."""
        before, self._before = self._before, None
        if before is None:
            return
        if "nested" in vars(before):
            vars(self)["nested"] = self.nested_with(self._store, before.nested)
        gates = app_cache(self, NESTED_GATES)
        for store_id, gate in app_cache(before, NESTED_GATES).items():
            gates[store_id] = self.nested_with(gate.settings.store, gate)

    def refusal_handler_for(self, verdict: Verdict) -> RefusalHandler | None:
        """Return what responds to a refusal: `on_refused` of the rule whose limit binds, else the global one."""
        binding, policies = verdict.binding, verdict.policies
        own = None if binding is None or not policies else policies[binding].on_refused
        return self.refusal_handler if own is None else self._rule_handlers.get(id(own), self.refusal_handler)

    def _build_refusal_handler(self, value: Any) -> RefusalHandler | None:
        if value is None:
            return None
        with error_location("on_refused"):
            handler = refusal_handler(value)
            if handler.kind not in self._integration.handler_kinds:
                expected = self._integration.expected_handler
                raise ConfigError(
                    f"got {callable_name(handler.call)}, which cannot answer here: expected {expected}", code="RL-036"
                )
            if "wsgi" in self._integration.handler_kinds:
                reject_async(handler.call, " under WSGI")
        return handler

    def _open(self, open_url: Callable[[str, float], Any]) -> Any:
        """Return the store of the settings. `open_url`: opens one by its URL."""
        if self._lasting.store is not None:
            return self._lasting.store
        store, timeout = self.settings.store, self.settings.store_timeout
        if not isinstance(store, str):
            check_is_store(store)
            return store
        unchecked = None if self._integration.probes_store else open_unchecked(store, timeout)
        return open_url(store, timeout) if unchecked is None else unchecked

    def _use_store(self, store: Store | AsyncStore) -> None:
        """Set the store of this gate and what counts in it, and check it."""
        self._store = self._lasting.store = store
        self._declared = declared(store)
        self._needs_fallback = self._declared.can_fail
        self._refresher = refresher_of(store, self.settings, is_async=self._awaits_callables)
        self.rule_set.overrides = NO_OVERRIDES if self._refresher is None else self._refresher.overrides
        if self._on_store_event is not None and self._declared.subscribe(self._on_store_event):
            self._on_store_event = None
        before = self._before
        if before is not None and before.settings.remember_refused == self.settings.remember_refused:
            self.reporter = before.reporter
        elif size := self.settings.remember_refused:
            keeper = self._declared
            if self.settings.metrics and keeper.inventory is None and keeper.async_inventory is None:
                keeper = local_board(self.settings)
            self.reporter = reporter_for(keeper, size, is_async=self._awaits_callables)
            if self.reporter is None:
                warn_or_fail([_KEEPS_NO_REFUSALS], strict=self.settings.strict)
        if self.settings.metrics:
            watch_store(self._declared, id(store), self._fallback)
            if not self._is_inner and self._integration.probes_store:
                board = board_of(self._declared, self.settings)
                LIVE.use(board, digest(self.settings), is_async=self._awaits_callables)
        self._check_store()

    def _check_store(self) -> None:
        """Warn of what the store cannot keep, or raise `ConfigError`."""
        if self._declared.is_cluster and not (self.settings.key_secret or self._is_nested):
            warn_or_fail([_UNEVEN_LOAD], strict=self.settings.strict)
        probes = self.settings.strict and self._integration.probes_store and self._before is None
        if probes:
            self._probe()
        if not self._is_inner:
            self._check_calendar_limits(asks=probes)

    def _check_calendar_limits(self, *, asks: bool) -> None:
        """Warn of a store that may lose the units of a long period, now or when a callable returns such a limit."""
        limits, lasting = self.rule_set.known_limits, self._lasting
        if self.rule_set.has_dynamic_limits or any(limit.uses_wall_time for limit in limits):
            losses, inspection = inspect_for_calendar(self._declared, self.settings, asks=asks)
            warn_or_fail(calendar_findings(limits, losses, inspection), strict=self.settings.strict)
            lasting.losses = losses if lasting.losses is None else lasting.losses  # after a reload, do not warn again
        self.rule_set.report_chosen(partial(warn_of_chosen, lasting.losses or []))

    def _probe(self) -> None:
        """Raise `ConfigError` if the store rejects the gate. If it does not answer, only warn: the app starts."""
        probe = self._declared.probe
        error = None if probe is None else probe(self.rule_set.algorithms)
        if error is None:
            return
        if error.rejected:
            raise ConfigError(f"store: {error}", code="RL-042")
        warn("store: no answer at start (%s); on_store_error decides", error_summary(error), code="RL-129")


def _hook(setting: str, value: object) -> Hook | None:
    if value is None:
        return None
    with error_location(setting):
        return Hook(setting, resolve_callable(value, ("event",), plain=True))
