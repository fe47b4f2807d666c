"""The middleware for Django, for WSGI and for ASGI."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ratelimit_mw.advice import Processes
from ratelimit_mw.django.answers import Turn, answer, follow, instead, show, turn_of
from ratelimit_mw.django.endpoints import ENFORCED, marks_on
from ratelimit_mw.django.gates import SETTING, gate_of
from ratelimit_mw.django.request import AsyncDjangoRequest, DjangoRequest, UserIsAwaited, awaited_user
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.following import following
from ratelimit_mw.gate import Gate
from ratelimit_mw.kept import Budget, Kept
from ratelimit_mw.matching import Marked
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.on_refused import aanswered
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.sources import unread
from ratelimit_mw.verdict import Verdict

_ENDPOINTS: Final = 4096  # whose limits are remembered
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")  # no view tells others apart


class RateLimitMiddleware:
    """Limits how often a client may call a Django project: `"ratelimit_mw.django.RateLimitMiddleware"` in `MIDDLEWARE`.

    It stands after AuthenticationMiddleware. `RATELIMIT_MW` in Django's settings is `Settings` or a mapping. Views find
    the verdict in `request.ratelimit.verdict`, None where nothing is limited. It decides when the view is known and not
    yet called; for requests that never get to a view, when they are answered, and a refusal is sent instead. Wrong
    settings raise `ConfigError` when the server loads the project.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response: Final = get_response
        self._is_async: Final = iscoroutinefunction(get_response)
        self._gate: Any = gate_of(getattr(settings, SETTING, None), is_async=self._is_async)
        warn_or_fail(unread(dir(settings), SETTING), strict=self._gate.settings.strict)
        self._style: Final = self._gate.settings.headers
        self._limits: Final = Kept[tuple[Any, str, str], tuple[Marked, bool]](self._limits_on, Budget(_ENDPOINTS))
        self._processes: Final = Processes(self._gate.settings.store)
        # Django looks at what kind of function it is, and would have a thread run a plain one
        self.process_view: Final[Callable[..., Any]] = self._adecide if self._is_async else self._decide
        if self._is_async:
            markcoroutinefunction(self)
        ENFORCED.set()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Have one request answered. The response is the very one that is inside, with our headers."""
        if self._is_async:
            return self._acall(request)
        if self._processes.unknown and not hasattr(request, "scope"):  # under ASGI Django says several, always
            self._processes.look(request.META)
        turn = self._turn(request)
        try:
            response: HttpResponseBase = self._get_response(request)
        except BaseException:
            turn.ends("raised")
            raise
        if not turn.decided and turn.due and (refused := self._decide(request)) is not None:
            response = instead(refused, response)
        if turn.shows:
            show(response, turn.outcome.verdict, self._style)
        if turn.following is not None:
            follow(response, turn.following)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        turn = self._turn(request)
        try:
            response: HttpResponseBase = await self._get_response(request)
        except asyncio.CancelledError:
            turn.ends("cancelled")
            raise
        except BaseException:
            turn.ends("raised")
            raise
        if not turn.decided and turn.due and (refused := await self._adecide(request)) is not None:
            response = instead(refused, response)
        if turn.shows:
            show(response, turn.outcome.verdict, self._style)
        if turn.following is not None:
            follow(response, turn.following)
        return response

    def _decide(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """The answer to a request that is refused. It is decided once."""
        turn = self._turn(request)
        if turn.decided:
            return turn.answer(request)
        turn.decided = True
        marked, _ = self._marked(request)
        verdict = admit_client(self._gate, turn.outcome, request, marked)
        if verdict is not None and verdict.allowed:  # the usual case, in short
            turn.outcome.add(verdict, self._gate)
            return None
        seen = DjangoRequest(request, turn.outcome)
        if verdict is None:
            verdict = self._gate.admit(seen, marked)
        if verdict is not None:
            turn.outcome.add(verdict, self._gate)
            if not verdict.allowed:
                turn.refused = answer(self._gate.answerer, seen, verdict, self._gate.refusal(seen, verdict))
            elif seen.followers is not None:
                turn.following = following(seen, turn.outcome)
        return None if turn.refused is None else turn.answer(request)

    async def _adecide(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        turn = self._turn(request)
        if turn.decided:
            return turn.answer(request)
        turn.decided = True
        marked, asks = self._marked(request)
        immediate = None if asks else self._gate.immediate
        verdict = None if immediate is None else admit_client(immediate, turn.outcome, request, marked)
        if verdict is not None and verdict.allowed:
            turn.outcome.add(verdict, self._gate)
            return None
        seen = AsyncDjangoRequest(request, turn.outcome)
        for _ in range(2 if verdict is None else 0):
            try:
                verdict = immediate.admit(seen, marked) if immediate else await self._gate.admit(seen, marked)
                break
            except UserIsAwaited:
                seen = AsyncDjangoRequest(request, turn.outcome, await awaited_user(request))
        if verdict is not None:
            turn.outcome.add(verdict, self._gate)
            if not verdict.allowed:
                turn.refused = await aanswered(self._gate.answerer, seen, verdict, self._gate.refusal(seen, verdict))
            elif seen.followers is not None:
                turn.following = following(seen, turn.outcome, asyncio.get_running_loop())
        return None if turn.refused is None else turn.answer(request)

    def _turn(self, request: Any) -> Turn:
        """Our part in this request; the same one however often whoever stands further out has it answered."""
        turns: dict[Any, Turn] | None = getattr(request, "_ratelimit_mw", None)
        if turns is None:
            turns = request._ratelimit_mw = {}  # noqa: SLF001  # ours
        turn = turns.get(self)
        if turn is None:
            turn = turns[self] = turn_of(request, self._gate, self._style)
        return turn

    def _marked(self, request: HttpRequest) -> tuple[Marked, bool]:
        """What stands on the view of a request, and whether somebody has to be waited for."""
        match = request.resolver_match
        if match is None:
            return (), False
        method = request.method if request.method in METHODS else ""
        endpoint = match.func, method, match.route
        try:
            return self._limits[endpoint]
        except TypeError:  # an instance as a view, that cannot be hashed
            return self._limits_on(endpoint)

    def _limits_on(self, endpoint: tuple[Any, str, str]) -> tuple[Marked, bool]:
        view, method, route = endpoint
        found: Marked = ()
        for marks, name, shown in marks_on(view, method, f"/{route}"):
            found += self._gate.compiled(marks, name, shown, beside=found)
            for mark in () if self._is_async else marks:
                try:
                    mark.without_awaiting()
                except ConfigError as error:
                    finding = Finding(f"limits on {name}: {error}")
                    warn_or_fail([finding], strict=self._gate.settings.strict)
        return found, any(rule.lines.calls or rule.lines.waits for rule in found)


def admit_client(gate: Gate, outcome: Outcome, request: HttpRequest, marked: Marked) -> Verdict | None:
    """The verdict where nothing but the client's address counts; None where more has to be looked at."""
    if outcome.verdict is not None or hasattr(request, "user"):
        return None
    return gate.admit_client(request.META.get("REMOTE_ADDR") or None, request.method, marked)
