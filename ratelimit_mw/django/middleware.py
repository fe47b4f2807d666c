"""The middleware for Django, under WSGI and ASGI."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string
from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, Verdict
from ratelimit_mw.django.endpoint_limits import MIDDLEWARE_LOADED, SETTING_NAME, limits_by_level, report_limits
from ratelimit_mw.django.request import (
    AsyncDjangoRequest,
    DjangoRequest,
    UserNotLoaded,
    enter,
    joined_route,
    load_user,
    may_have_user,
)
from ratelimit_mw.django.responses import (
    RequestContext,
    add_headers,
    end_on_close,
    refusal_of,
    replace_response,
    to_django,
    wait_in_thread,
)
from ratelimit_mw.engine.base_gate import Integration
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.reload import reloader
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.on_refused import await_result
from ratelimit_mw.http.response import SERVER_ERROR, HeaderStyle, raise_unhandled
from ratelimit_mw.rules.deployment_checks import ProcessCountCheck
from ratelimit_mw.rules.rule_set import UNDECIDED, ShortWay
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import unread_settings
from ratelimit_mw.settings.options import Options

AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
USER_UNKNOWN: Final = "Keys read the user, who is known only after AuthenticationMiddleware"
FIX_ORDER: Final = f"Put {AUTHENTICATION!r} before 'ratelimit_mw.django.RateLimitMiddleware' in MIDDLEWARE"
_STATE_KEY: Final = "ratelimit_mw"  # where WSGI or ASGI middleware around Django stores the state
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")  # others share one cache entry
# an ASGI or WSGI app cannot respond inside Django, which serves no websockets even under ASGI
_DJANGO: Final = Integration(("plain",), "a callable (request, verdict)", "the middleware of Django")
_IN_SETTINGS: Final = dict.fromkeys(Options.__annotations__, f"into {SETTING_NAME} of Django's settings")


def build_gate(value: Any, *, is_async: bool, before: Any = None) -> Gate | AsyncGate:
    """Return the gate of `RATELIMIT_MW`. Raises `ConfigError` that names the setting.

    `before`: the gate that it replaces in a reload.
    """
    with error_location(SETTING_NAME):
        found = Settings.of(value, {})
        kind: Any = AsyncGate if is_async else Gate
        gate: Gate | AsyncGate = kind(found, integration=_DJANGO, before=before)
        return gate


def middleware_indices() -> Sequence[int]:
    """Return the indices of the middleware, and of its subclasses, in `MIDDLEWARE`."""
    indices = []
    for index, path in enumerate(settings.MIDDLEWARE):
        try:
            found = import_string(path)
        except ImportError:  # Django reports it when it loads the middleware
            continue
        if isinstance(found, type) and issubclass(found, RateLimitMiddleware):
            indices.append(index)
    return indices


def comes_before_authentication(keys: Iterable[Key]) -> bool:
    """Return whether a key reads the user before Django's own middleware has authenticated the user."""
    if AUTHENTICATION not in settings.MIDDLEWARE or not any(key.may_read_user for key in keys):
        return False
    authentication: int = settings.MIDDLEWARE.index(AUTHENTICATION)
    return next(iter(middleware_indices()), math.inf) < authentication


def _check_get_response(arguments: Sequence[object]) -> str:
    """Raise `ConfigError` if another framework creates the middleware; return an empty text for Django."""
    for get_response in arguments[1:2]:
        check_app(get_response, "Django")
    return ""


class Setup(Struct, frozen=True, eq=False):
    """What the settings in force make of the middleware. A reload replaces it as a whole.

    `sync_gate`: decides without an await; None if the store or a rule may need one.
    """

    gate: Any
    sync_gate: Gate | None
    style: HeaderStyle
    has_short_way: bool
    usage_path: str | None


class RateLimitMiddleware:
    """Limits how often a client may call a Django project: `"ratelimit_mw.django.RateLimitMiddleware"` in `MIDDLEWARE`.

    Place it after AuthenticationMiddleware. `RATELIMIT_MW` in Django's settings is `Settings` or a mapping, or a
    callable that returns one, or text that names it. Views find the verdict in `request.ratelimit.verdict`, None if
    nothing is limited. A request is decided when its view is known, before the view is called. A request that reaches
    no view is decided when inner middleware has answered it; a refusal replaces that answer. Invalid settings raise
    `ConfigError` when the server loads the project.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    @check_arguments(elsewhere=_IN_SETTINGS, explain=_check_get_response)
    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        check_app(get_response, "Django")
        self._get_response: Final = get_response
        self._is_async: Final = iscoroutinefunction(get_response)
        self._compile: Final = self._limits_on  # the same object for each request
        self._setup = self._build(getattr(settings, SETTING_NAME, None))
        found = self._setup.gate.settings
        self._reloader: Final = reloader(found, lambda changed: self._build(changed, self.gate), self._use)
        self._processes: Final = ProcessCountCheck(found.store)
        self._has_started = False
        # An async middleware needs an async hook: Django would run a plain function in a thread.
        self.process_view: Final[Callable[..., Any]] = self._decide if self._is_async else self._decide_in_thread
        if self._is_async:
            markcoroutinefunction(self)
        MIDDLEWARE_LOADED.set()

    def _build(self, value: Any, before: Gate | AsyncGate | None = None) -> Setup:
        """Return what decides under these settings. `before`: the gate that it replaces in a reload."""
        gate: Any = build_gate(value, is_async=self._is_async, before=before)
        findings = [*unread_settings(dir(settings), SETTING_NAME)]
        if comes_before_authentication(gate.rule_set.keys):
            findings.append(Finding(f"{USER_UNKNOWN}; {FIX_ORDER[0].lower()}{FIX_ORDER[1:]}", code="RL-115"))
        warn_or_fail(findings, strict=gate.settings.strict)
        sync_gate = gate.sync_gate if self._is_async else gate
        return Setup(gate, sync_gate, gate.settings.headers, gate.has_short_way, gate.settings.usage_path)

    def _use(self, setup: Setup) -> None:
        """Decide the requests that begin from now on by this."""
        self._setup = setup

    def _start(self, request: HttpRequest) -> None:
        """Examine the server, and start reloads, at the first request."""
        if not self._is_async and not hasattr(request, "scope"):  # Django sets multiprocess under ASGI
            self._processes.examine(request.META)
        if self._is_async:
            self._setup.gate.runtime.loop = asyncio.get_running_loop()  # for charges in the threads of sync views
        if self._reloader is not None:
            self._reloader.start()
        self._has_started = self._processes.done or self._is_async

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Return the inner response to a request, with headers added, or a refusal."""
        if not self._has_started:
            self._start(request)
        if self._is_async:
            return self._handle(request)
        context = self._context(request)
        if self._asks_usage(request, context) and (answer := self._decide_in_thread(request)) is not None:
            return self._complete(request, context, answer, None)
        try:
            response: HttpResponseBase = self._get_response(request)
        except BaseException:
            context.end("raised")
            raise
        verdict = context.state.verdict
        refusal = None if context.is_decided else self._decide_in_thread(request)
        if response.status_code == SERVER_ERROR and refusal is None:
            refusal = run(self._refuse_unhandled(verdict, request, context, wait_in_thread))
        return self._complete(request, context, response, refusal)

    async def _handle(self, request: HttpRequest) -> HttpResponseBase:
        context = self._context(request)
        if self._asks_usage(request, context) and (answer := await self._decide(request)) is not None:
            return self._complete(request, context, answer, None)
        try:
            response: HttpResponseBase = await self._get_response(request)
        except BaseException as error:
            context.end("cancelled" if isinstance(error, asyncio.CancelledError) else "raised")
            raise
        verdict = context.state.verdict
        refusal = None if context.is_decided else await self._decide(request)
        if response.status_code == SERVER_ERROR and refusal is None:
            refusal = await self._refuse_unhandled(verdict, request, context, await_result)
        return self._complete(request, context, response, refusal)

    def _asks_usage(self, request: HttpRequest, context: RequestContext) -> bool:
        """Return whether a client asks for its own limits, which is answered before a view is looked for."""
        path = context.setup.usage_path
        if path is None or request.path_info != path:
            return False
        asks: bool = context.setup.gate.rule_set.asks_usage(DjangoRequest(request, context.state))
        return asks

    def _complete(
        self, request: HttpRequest, context: RequestContext, response: HttpResponseBase, refusal: HttpResponse | None
    ) -> HttpResponseBase:
        """Return the response with headers added, or the refusal in its place."""
        if refusal is not None:
            response = replace_response(refusal, response)
        if context.adds_headers:
            add_headers(response, context.state.verdict, context.setup.style)
        if context.tracker is not None:
            context.tracker.response.started(response.status_code, ())  # its last status and headers follow at its end
            end_on_close(request, response, context.tracker)
            context.tracker = None  # the response has it now
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the response to a request that a charge of the app refused; None for other errors.

        Django calls it in a thread without an event loop, also under ASGI.
        """
        if not isinstance(error, RateLimited):
            return None
        return run(self._refuse_charge(error, request, self._context(request), wait_in_thread))

    async def _refuse_unhandled(
        self, verdict: Verdict | None, request: HttpRequest, context: RequestContext, waits: Any
    ) -> HttpResponse | None:
        """Return the response to a refused charge that the app answered with a server error; None for other errors.

        `verdict`: when the app responded.
        """
        try:
            raise_unhandled(verdict, SERVER_ERROR)
        except RateLimited as error:
            return await self._refuse_charge(error, request, context, waits)
        return None

    async def _refuse_charge(
        self, error: RateLimited, request: HttpRequest, context: RequestContext, waits: Any
    ) -> HttpResponse:
        gate = context.setup.gate
        django_request = DjangoRequest(request, context.state)
        gate.rule_set.find_client(django_request)
        verdict = context.state.refusal_of(error, gate)
        return to_django(request, await refusal_of(gate, django_request, verdict, waits))

    def _decide_in_thread(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        context = self._context(request)
        way, charges, client = self._enter(request, context)
        if way is not None and self._admits(context, context.setup.gate.take(way, charges, request.META), client):
            return None
        return run(self._decide_generally(request))

    async def _decide(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Return the response to a refused request, None for an admitted one. Decides once per request."""
        context = self._context(request)
        way, charges, client = self._enter(request, context)
        if way is not None:
            setup = context.setup
            gate = setup.sync_gate
            raw = request.META
            verdict = await setup.gate.take(way, charges, raw) if gate is None else gate.take(way, charges, raw)
            if self._admits(context, verdict, client):
                return None
        return await self._decide_generally(request)

    def _enter(self, request: HttpRequest, context: RequestContext) -> ShortWay:
        """Return the short way of a request that is undecided and has no user."""
        setup: Setup = context.setup
        if not setup.has_short_way or context.is_decided or context.state.verdict is not None:
            return UNDECIDED
        if getattr(request, "user", None) is not None and may_have_user(request):
            return UNDECIDED
        return enter(setup.gate.rule_set, request, self.limits_of(request, setup)[0])

    def _admits(self, context: RequestContext, verdict: Verdict | None, client: str | None) -> bool:
        """Record the short way's verdict, and return whether it admits. `_decide_generally` responds to a refusal."""
        if verdict is not None and not verdict.allowed:
            context.verdict, context.client = verdict, client
            return False
        context.is_decided = True
        if verdict is not None:
            context.state.record(verdict, context.setup.gate)
        return True

    async def _decide_generally(self, request: HttpRequest) -> HttpResponse | None:
        """Decide on the longer way, or respond to a refusal of the short one.

        In a sync middleware, `run` drives this coroutine in a thread, so it must not suspend: a delay blocks the
        thread.
        """
        context = self._context(request)
        if context.needs_decision:
            context.is_decided = True
            django_request = (AsyncDjangoRequest if self._is_async else DjangoRequest)(request, context.state)
            if context.verdict is not None:
                django_request.client = context.client
            else:
                try:
                    context.verdict = await self._admit(django_request, context.setup)
                except UserNotLoaded:
                    django_request = AsyncDjangoRequest(request, context.state, await load_user(request))
                    context.verdict = await self._admit(django_request, context.setup)
            context.refusal = django_request.answer
            waits = await_result if self._is_async else wait_in_thread
            await self._conclude(context.verdict, django_request, context, waits)
        return None if context.refusal is None else to_django(request, context.refusal)

    async def _admit(self, django_request: DjangoRequest, setup: Setup) -> Verdict | None:
        endpoint_rules, gate = self.limits_of(django_request.raw, setup)
        if gate is not None:
            return gate.admit(django_request, endpoint_rules)
        verdict: Verdict | None = await setup.gate.admit(django_request, endpoint_rules)
        return verdict

    async def _conclude(
        self, verdict: Verdict | None, django_request: DjangoRequest, context: RequestContext, waits: Any
    ) -> None:
        """Record a verdict. Prepare the answer to a refused request, or track an admitted one. `waits`: for a hook."""
        gate = context.setup.gate
        if verdict is not None:
            context.state.record(verdict, gate)
        if verdict is not None and not verdict.allowed:
            context.refusal = await refusal_of(gate, django_request, verdict, waits)
        elif django_request.on_end is not None:
            loop = asyncio.get_running_loop() if self._is_async else None
            context.tracker = track_response(django_request, context.state, loop)

    def _context(self, request: Any) -> RequestContext:
        """Return this middleware's context of a request. Repeated calls for a request share one context."""
        inner: RequestContext | None = getattr(request, "_ratelimit_mw", None)
        context = inner
        while context is not None:
            if context.middleware is self:
                return context
            context = context.outer
        setup = self._setup  # once: a reload may replace it
        state = getattr(request, "scope", request.META).get(_STATE_KEY) if inner is None else inner.state
        adds_headers = setup.style != "none"
        if state is None or not isinstance(state, RateLimitState):
            state = RateLimitState(None, setup.gate, adds_headers)
        elif state.headers_claimed:
            adds_headers = False
        elif adds_headers:
            state.headers_claimed = True
        request.ratelimit = state
        context = request._ratelimit_mw = RequestContext(self, state, setup, adds_headers, inner)  # noqa: SLF001  # our own
        return context

    @property
    def gate(self) -> Gate | AsyncGate:
        """The gate that decides the requests."""
        gate: Gate | AsyncGate = self._setup.gate
        return gate

    def limits_of(self, request: HttpRequest, setup: Setup | None = None) -> tuple[EndpointRules, Gate | None]:
        """Return the limits on the view of a request, and `sync_gate`; None in its place if they may need an await.

        `setup`: what decides the request; by default what decides new ones.
        """
        setup = setup or self._setup
        match: Any = request.resolver_match
        if match is None:
            return (), setup.sync_gate
        method = request.method if request.method in METHODS else ""
        place = self._compile, setup, match.func, method, *match.tried[-1]  # see `route_of`
        try:
            limits: tuple[EndpointRules, Gate | None] = setup.gate.compiled[place]
        except TypeError:  # the view is an instance without a hash
            limits = self._limits_on(*place[1:])
        return limits

    def _limits_on(self, setup: Setup, view: Any, method: str, *patterns: Any) -> tuple[EndpointRules, Gate | None]:
        levels = list(limits_by_level(view, method, joined_route(*patterns)))
        limits = report_limits(setup.gate.rule_set, levels)
        for endpoint_limits, name, _ in levels:
            for endpoint_limit in () if self._is_async else endpoint_limits:
                try:
                    endpoint_limit.reject_async_callables()
                except ConfigError as error:
                    finding = Finding(f"limits on {name}: {error}", code="")
                    warn_or_fail([finding], strict=setup.gate.settings.strict)
        may_await = self._is_async and any(rule.limit_set.may_await for rule in limits)
        return limits, None if may_await else setup.sync_gate
