"""The middleware for Django, under WSGI and ASGI."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.memo import Budget, Memo
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.django.endpoint_limits import MIDDLEWARE_LOADED, limits_by_level
from ratelimit_mw.django.gates import SETTING_NAME, build_gate
from ratelimit_mw.django.request import AsyncDjangoRequest, DjangoRequest, UserNotLoaded, load_user
from ratelimit_mw.django.responses import (
    RequestContext,
    add_headers,
    end_on_close,
    refusal_from_handler,
    replace_response,
    request_context,
)
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import call_refusal_handler
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.rules.startup_checks import ProcessCountCheck
from ratelimit_mw.settings.loading import unread_settings

_MAX_CACHED_ENDPOINTS: Final = 4096
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")  # views treat others alike


class RateLimitMiddleware:
    """Limits how often a client may call a Django project: `"ratelimit_mw.django.RateLimitMiddleware"` in `MIDDLEWARE`.

    Place it after AuthenticationMiddleware. `RATELIMIT_MW` in Django's settings is `Settings` or a mapping. Views
    find the verdict in `request.ratelimit.verdict`, None if nothing is limited. A request is decided when its view is
    known, before the view is called. A request that reaches no view is decided when it is answered; a refusal replaces
    the answer. Invalid settings raise `ConfigError` when the server loads the project.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response: Final = get_response
        self._is_async: Final = iscoroutinefunction(get_response)
        self._gate: Any = build_gate(getattr(settings, SETTING_NAME, None), is_async=self._is_async)
        warn_or_fail(unread_settings(dir(settings), SETTING_NAME), strict=self._gate.settings.strict)
        self._style: Final = self._gate.settings.headers
        self._limits: Final = Memo[tuple[Any, str, str], tuple[EndpointRules, bool]](
            self._limits_on, Budget(_MAX_CACHED_ENDPOINTS)
        )
        self._processes: Final = ProcessCountCheck(self._gate.settings.store)
        # Django runs a plain function in a thread, so the hook must be async under ASGI
        self.process_view: Final[Callable[..., Any]] = self._adecide if self._is_async else self._decide
        if self._is_async:
            markcoroutinefunction(self)
        MIDDLEWARE_LOADED.set()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Return the inner response to a request, with headers added, or a refusal."""
        if self._is_async:
            return self._acall(request)
        if self._processes.unknown and not hasattr(request, "scope"):  # under ASGI, always "several processes"
            self._processes.examine(request.META)
        context = self._context(request)
        try:
            response: HttpResponseBase = self._get_response(request)
        except BaseException:
            context.end("raised")
            raise
        if not context.is_decided and context.needs_decision and (refused := self._decide(request)) is not None:
            response = replace_response(refused, response)
        if context.adds_headers:
            add_headers(response, context.state.verdict, self._style)
        if context.tracker is not None:
            end_on_close(response, context.tracker)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        context = self._context(request)
        try:
            response: HttpResponseBase = await self._get_response(request)
        except asyncio.CancelledError:
            context.end("cancelled")
            raise
        except BaseException:
            context.end("raised")
            raise
        if not context.is_decided and context.needs_decision and (refused := await self._adecide(request)) is not None:
            response = replace_response(refused, response)
        if context.adds_headers:
            add_headers(response, context.state.verdict, self._style)
        if context.tracker is not None:
            end_on_close(response, context.tracker)
        return response

    def _decide(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Return the response to a refused request, None for an admitted one. Decides once per request."""
        context = self._context(request)
        if context.is_decided:
            return context.answer(request)
        context.is_decided = True
        endpoint_rules, _ = self._limits_of(request)
        verdict = admit_by_address(self._gate, context.state, request, endpoint_rules)
        if verdict is not None and verdict.allowed:  # fast path
            context.state.record(verdict, self._gate)
            return None
        django_request = DjangoRequest(request, context.state)
        if verdict is None:
            verdict = self._gate.admit(django_request, endpoint_rules)
        if verdict is not None:
            context.state.record(verdict, self._gate)
            if not verdict.allowed:
                context.refused = refusal_from_handler(
                    self._gate.refusal_handler,
                    django_request,
                    verdict,
                    self._gate.default_refusal(django_request, verdict),
                )
            elif django_request.on_end is not None:
                context.tracker = track_response(django_request, context.state)
        return None if context.refused is None else context.answer(request)

    async def _adecide(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        context = self._context(request)
        if context.is_decided:
            return context.answer(request)
        context.is_decided = True
        endpoint_rules, may_await = self._limits_of(request)
        sync_gate = None if may_await else self._gate.sync_gate
        verdict = None if sync_gate is None else admit_by_address(sync_gate, context.state, request, endpoint_rules)
        if verdict is not None and verdict.allowed:
            context.state.record(verdict, self._gate)
            return None
        django_request = AsyncDjangoRequest(request, context.state)
        for _ in range(2 if verdict is None else 0):
            try:
                verdict = (
                    sync_gate.admit(django_request, endpoint_rules)
                    if sync_gate
                    else await self._gate.admit(django_request, endpoint_rules)
                )
                break
            except UserNotLoaded:
                django_request = AsyncDjangoRequest(request, context.state, await load_user(request))
        if verdict is not None:
            context.state.record(verdict, self._gate)
            if not verdict.allowed:
                context.refused = await call_refusal_handler(
                    self._gate.refusal_handler,
                    django_request,
                    verdict,
                    self._gate.default_refusal(django_request, verdict),
                )
            elif django_request.on_end is not None:
                context.tracker = track_response(django_request, context.state, asyncio.get_running_loop())
        return None if context.refused is None else context.answer(request)

    def _context(self, request: Any) -> RequestContext:
        """Return this middleware's context of a request. Repeated calls for a request share one context."""
        contexts: dict[Any, RequestContext] | None = getattr(request, "_ratelimit_mw", None)
        if contexts is None:
            contexts = request._ratelimit_mw = {}  # noqa: SLF001  # this package's own attribute
        context = contexts.get(self)
        if context is None:
            context = contexts[self] = request_context(request, self._gate, self._style)
        return context

    def _limits_of(self, request: HttpRequest) -> tuple[EndpointRules, bool]:
        """Return the limits on the view of a request, and whether they may need an await."""
        match = request.resolver_match
        if match is None:
            return (), False
        method = request.method if request.method in METHODS else ""
        endpoint = match.func, method, match.route
        try:
            return self._limits[endpoint]
        except TypeError:  # the view is an instance without a hash
            return self._limits_on(endpoint)

    def _limits_on(self, endpoint: tuple[Any, str, str]) -> tuple[EndpointRules, bool]:
        view, method, route = endpoint
        limits: EndpointRules = ()
        for endpoint_limits, name, shown in limits_by_level(view, method, f"/{route}"):
            limits += self._gate.compile_endpoint_limits(endpoint_limits, name, shown, siblings=limits)
            for endpoint_limit in () if self._is_async else endpoint_limits:
                try:
                    endpoint_limit.reject_async_callables()
                except ConfigError as error:
                    finding = Finding(f"limits on {name}: {error}")
                    warn_or_fail([finding], strict=self._gate.settings.strict)
        return limits, any(rule.limit_set.callables or rule.limit_set.may_delay for rule in limits)


def admit_by_address(
    gate: Gate, state: RateLimitState, request: HttpRequest, endpoint_rules: EndpointRules
) -> Verdict | None:
    """Return the verdict of the fast path; None if more than the client's address matters."""
    if state.verdict is not None or hasattr(request, "user"):
        return None
    return gate.admit_by_address(request.META.get("REMOTE_ADDR") or None, request.method, endpoint_rules)
