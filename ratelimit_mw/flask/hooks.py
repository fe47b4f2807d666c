"""The functions that Flask calls before and after each request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ratelimit_mw.core.errors import require
from ratelimit_mw.core.log import Finding, warn_or_fail, warn_throttled
from ratelimit_mw.core.verdict import RateLimited, Verdict
from ratelimit_mw.engine.entrance import enter_wsgi
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.reload import reloader
from ratelimit_mw.engine.response_tracking import ResponseTracker, track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.flask.endpoint_limits import blueprints_around, levels_of
from ratelimit_mw.flask.first_request import findings_on_routes
from ratelimit_mw.http.on_refused import RefusalHandler, warn_of_failed_handler
from ratelimit_mw.http.request import Request, as_text, user_id
from ratelimit_mw.http.response import HeaderList, HeaderStyle, addable, addable_to_refusal, headers
from ratelimit_mw.http.response import Response as OwnResponse
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.rules.deployment_checks import ProcessCountCheck
from ratelimit_mw.rules.rule_table import CompiledRule, EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.wsgi.send import send_refusal, send_response
from ratelimit_mw.wsgi.tracking import end_on_close

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


with require("flask"):
    from flask import Flask, Response, current_app, g, has_request_context, request, request_finished
    from flask import Request as FlaskRequest
    from flask.sessions import SecureCookieSessionInterface
    from werkzeug.datastructures import Headers
    from werkzeug.exceptions import HTTPException, default_exceptions
    from werkzeug.routing import Rule
    from werkzeug.wsgi import ClosingIterator

# Set on Flask's request and response. Not by `vars`, because once an object has a dict, its attributes are slower.
_ATTRIBUTE: Final = "_ratelimit_mw"

# These functions return the object behind a proxy of Flask. Each access through the proxy takes half a microsecond.
_current_request: Final[Callable[[], FlaskRequest]] = request._get_current_object  # type: ignore[attr-defined]  # noqa: SLF001  # documented
_current_globals: Final[Callable[[], Any]] = g._get_current_object  # noqa: SLF001  # the same


class FlaskLoginRequest(WsgiRequest):
    """A WSGI request whose user comes from Flask-Login."""

    __slots__ = ()

    @property
    def user(self) -> str | None:
        """The id of Flask-Login's user, if the app uses it; else the server's user."""
        return _logged_in() or super().user


def _may_have_user(app: Flask, environ: "WSGIEnvironment") -> bool:
    """Return whether the request may have a user. Does not load the user."""
    if environ.get("REMOTE_USER"):
        return True
    manager = getattr(app, "login_manager", None)
    return manager is not None and not _cannot_have_user(app, manager)


def _logged_in() -> str | None:
    """Return the id of Flask-Login's user, if the app uses it. Loads the user."""
    manager = getattr(current_app, "login_manager", None)
    if manager is None or _cannot_have_user(current_app, manager):
        return None
    try:
        from flask_login import current_user  # type: ignore[import-untyped]  # noqa: PLC0415  # optional

        known = current_user.is_authenticated
        if not (known() if callable(known) else known):
            return None
        return as_text(current_user.get_id()) or user_id(current_user)
    except Exception as error:  # noqa: BLE001  # loading a user may fail, e.g. in a database
        warn_throttled(
            "user", "Flask-Login raised an error: the request counts as one without a user", error=error, code="RL-226"
        )
        return None


def _cannot_have_user(app: Flask, manager: Any) -> bool:
    """Return whether the request has nothing from which Flask-Login could load a user.

    If so, the user need not be loaded. To load it marks the session as accessed, and Flask then adds `Vary: Cookie`,
    even to a page that is the same for all users. Returns False if the app has loaded a user already, has a
    `request_loader`, or does not use Flask's own sessions, because Flask-Login may then need neither cookie nor header.
    """
    if hasattr(g, "_login_user") or getattr(manager, "_request_callback", manager) is not None:
        return False
    if not isinstance(app.session_interface, SecureCookieSessionInterface):
        return False
    names = app.session_interface.get_cookie_name(app), app.config.get("REMEMBER_COOKIE_NAME", "remember_token")
    header = app.config.get("AUTH_HEADER_NAME", "Authorization")
    found = _current_request()
    return header not in found.headers and not any(name in found.cookies for name in names)


_FIRST_ERROR: Final = 400  # the lowest status that tells a client of a failure
_HANDLER_ADMITS: Final = "answered a refused request with %d; return the body and the status, such as `return text, %d`"


class _RequestDecision(Struct):
    """The decision on one request.

    `shown_state`: the state that the headers describe. `refusal`: the response that replaces the view's, also if it
    answers what is left of limits. `verdict` and
    `fields`: those of a refusal whose body an error handler of the app writes. `tracker`: reports the end of the
    response.
    """

    shown_state: RateLimitState | None = None
    refusal: Any = None
    verdict: Verdict | None = None
    fields: HeaderList | None = None
    tracker: ResponseTracker | None = None


class Setup(Struct, frozen=True, eq=False):
    """What the settings in force make of the hooks. A reload replaces it as a whole."""

    gate: Gate
    style: HeaderStyle
    takes_short_way: bool


class Hooks:
    """The request hooks of one app. `gate`: decides under the settings in force."""

    def __init__(self, app: Flask, settings: Settings) -> None:
        self.first_request: Any = None  # referenced, because signals keep only weak references
        self._app: Final = app
        self._compile: Final = self._limits_of_view  # the same object for each request
        self._setup = self._build(settings)
        self.reloader: Final = reloader(settings, self._rebuild, self._use)
        self._reports_ends = False  # whether Flask calls `finished`
        self._processes: Final = ProcessCountCheck(settings.store)
        self._has_started = False

    def _build(self, settings: Settings, before: Gate | None = None) -> Setup:
        """Return what decides under these settings. `before`: the gate that it replaces in a reload."""
        gate, style = Gate(settings, before=before), settings.headers
        return Setup(gate, style, style != "none" and gate.has_short_way)

    def _rebuild(self, settings: Settings) -> Setup:
        """Return what decides after a reload."""
        warn_or_fail(findings_on_routes(self._app, settings), strict=settings.strict)
        return self._build(settings, self.gate)

    def _use(self, setup: Setup) -> None:
        """Decide the requests that begin from now on by this."""
        self._setup = setup

    @property
    def gate(self) -> Gate:
        """The gate that decides the requests."""
        return self._setup.gate

    def _start(self, environ: "WSGIEnvironment") -> None:
        """Examine the server, and start reloads, at the first request."""
        self._processes.examine(environ)
        if self.reloader is not None:
            self.reloader.start()
        self._has_started = self._processes.done

    def before(self) -> Any:
        """Return the response to a refused request; None for an admitted one.

        Raises the `HTTPException` of the refusal's status, with a `verdict`, if the app has an error handler for it.
        """
        flask_request = _current_request()
        decision: _RequestDecision | None = getattr(flask_request, _ATTRIBUTE, None)
        if decision is None:
            decision = self._decide(flask_request)
            setattr(flask_request, _ATTRIBUTE, decision)
        if decision.fields is not None:
            raise _error(decision)
        return decision.refusal

    def after(self, response: Response) -> Response:
        """Add the headers. Also decides a request that an earlier hook answered, so that it is charged, too."""
        flask_request: Any = _current_request()
        decision: _RequestDecision | None = getattr(flask_request, _ATTRIBUTE, None)
        if decision is None:
            refusal = self._decide_late()
            if refusal is not None:
                response.close()
                response = refusal
            decision = getattr(flask_request, _ATTRIBUTE)
        if decision.tracker is not None:
            decision.tracker.response.started(response.status_code, ())  # its last status and headers follow at its end
        state = decision.shown_state
        _add_headers(
            response, decision.fields or [] if state is None else headers(state.verdict, self._setup.style), state
        )
        if decision.fields is not None and response.status_code < _FIRST_ERROR:
            warn_throttled(
                "error handler", _HANDLER_ADMITS, response.status_code, decision.refusal.status_code, code="RL-243"
            )
        return response

    def refused(self, error: RateLimited) -> Any:
        """Return the response to a charge that was refused. Flask's error handler for `RateLimited`."""
        state: RateLimitState = g.ratelimit
        flask_request: Any = _current_request()
        our_request = FlaskLoginRequest(flask_request.environ, flask_request.remote_addr, state)
        self.gate.rule_set.find_client(our_request)
        verdict = state.refusal_of(error, self.gate)
        decision, before = self._refusal_decision(our_request, verdict), getattr(flask_request, _ATTRIBUTE)
        decision.shown_state, decision.tracker = before.shown_state, before.tracker
        setattr(flask_request, _ATTRIBUTE, decision)
        if decision.fields is not None:
            return current_app.handle_user_exception(_error(decision))
        return decision.refusal

    def finished(self, *_: object, response: Response, **__: object) -> None:
        """Report the end when the server closes the response. Functions that ran after `after` may have replaced it."""
        decision: _RequestDecision | None = getattr(_current_request(), _ATTRIBUTE, None)
        if decision is not None and decision.tracker is not None:
            _end_on_close(response, decision.tracker)

    def failed(self, *_: object, **__: object) -> None:
        """End the tracking after an unhandled error, because there may be no response to close."""
        decision: _RequestDecision | None = getattr(request, _ATTRIBUTE, None) if has_request_context() else None
        if decision is not None and decision.tracker is not None:
            decision.tracker.end("raised")

    def _decide_late(self) -> Response | None:
        try:
            refusal = self.before()
        except HTTPException as error:
            refusal = current_app.handle_user_exception(error)
        return None if refusal is None else current_app.make_response(refusal)

    def close(self) -> None:
        """Close the store if it was opened for this app. WSGI has no shutdown event: call this from a server hook."""
        if self.reloader is not None:
            self.reloader.stop()
        self.gate.close()

    def _decide(self, flask_request: FlaskRequest) -> _RequestDecision:
        environ, rule = flask_request.environ, flask_request.url_rule
        if not self._has_started:
            self._start(environ)
        setup = self._setup  # once: a reload may replace it
        gate = setup.gate
        endpoint_rules = () if rule is None else self.limits_of(rule, flask_request.method, gate)
        way, verdict, client, outer = None, None, None, environ.get("ratelimit_mw")
        if outer is None and setup.takes_short_way and not _may_have_user(self._app, environ):
            way, charges, client = enter_wsgi(gate.rule_set, environ, endpoint_rules)
            verdict = None if way is None else gate.take(way, charges, environ)
            if verdict is not None and verdict.allowed:
                state = environ["ratelimit_mw"] = RateLimitState(verdict, gate, True)
                _current_globals().ratelimit = state
                return _RequestDecision(state)
        if way is None:
            client = environ.get("REMOTE_ADDR") or None  # `admit` finds the client
        our_request = FlaskLoginRequest(environ, client, outer, None if rule is None else rule.rule)
        if way is None:
            verdict = gate.admit(our_request, endpoint_rules)
        _current_globals().ratelimit = state = outer or RateLimitState(None, gate)
        if our_request.answer is not None:
            answer = partial(send_response, our_request.answer)
            return _RequestDecision(refusal=current_app.response_class.from_app(answer, environ, buffered=True))
        if verdict is not None:
            state.record(verdict, gate)
            if not verdict.allowed:
                return self._refusal_decision(our_request, verdict)
            environ["ratelimit_mw"] = state
        tracker = None if our_request.on_end is None else self._track(our_request, state)
        if verdict is None or setup.style == "none" or state.headers_claimed:
            return _RequestDecision(tracker=tracker)
        state.headers_claimed = True
        return _RequestDecision(shown_state=state, tracker=tracker)

    def _track(self, our_request: Request, state: RateLimitState) -> ResponseTracker | None:
        if not self._reports_ends:  # a signal with a receiver takes 2 µs per request, and most apps track none
            request_finished.connect(self.finished, self._app)
            self._reports_ends = True
        return track_response(our_request, state)

    def limits_of(self, rule: Rule, method: str, gate: Gate | None = None) -> EndpointRules:
        """Return the limits on the view and its blueprints, cached. `gate`: the gate that decides the request."""
        view = self._app.view_functions.get(rule.endpoint)
        place = self._compile, view, rule.endpoint, rule.rule, method, EndpointLimit.version
        try:
            limits: EndpointRules = (gate or self.gate).compiled[place]
        except TypeError:  # the view is an instance without a hash
            limits = self._limits_of_view(*place[1:])
        return limits

    def _limits_of_view(self, view: Any, endpoint: str, route: str, method: str, _: int) -> EndpointRules:
        """Return the same, uncached. The last argument, `EndpointLimit.version`, is only a part of the cache's key."""
        return self.gate.rule_set.report_endpoint(self._compiled(view, endpoint, route, method))

    def endpoint_findings(self) -> Sequence[Finding]:
        """Return what the first requests to all views report about their limits."""
        return self.gate.rule_set.endpoint_findings(self._all_endpoints())

    def endpoint_rules(self) -> Iterator[CompiledRule]:
        """Yield the limits on all views and blueprints."""
        for _, compiled in self._all_endpoints():
            yield from compiled()

    def _all_endpoints(self) -> Iterator[tuple[str, Callable[[], EndpointRules]]]:
        views = self._app.view_functions
        for rule in self._app.url_map.iter_rules():
            for method in sorted(rule.methods or ()):
                view = views.get(rule.endpoint)
                yield rule.endpoint, partial(self._compiled, view, rule.endpoint, rule.rule, method)

    def _compiled(self, view: Any, endpoint: str, route: str, method: str) -> EndpointRules:
        app = self._app
        methods = [
            allowed for rule in app.url_map.iter_rules(endpoint) if rule.rule == route for allowed in rule.methods or ()
        ]
        blueprints = [app.blueprints[name] for name in blueprints_around(endpoint) if name in app.blueprints]
        levels = levels_of(view, endpoint, route, methods, method, blueprints)
        return self.gate.rule_set.compile_endpoint_limits(*levels[0], *levels[1:]) if levels else ()

    def _refusal_decision(self, our_request: Request, verdict: Verdict) -> _RequestDecision:
        refusal = self.gate.default_refusal(our_request, verdict)
        refusal_handler = self.gate.refusal_handler_for(verdict)
        if refusal_handler is None and _is_handled(refusal.status):
            response = _flask_response(our_request, verdict, refusal, None)
            return _RequestDecision(refusal=response, verdict=verdict, fields=refusal.headers_without_body)
        try:
            return _RequestDecision(refusal=_flask_response(our_request, verdict, refusal, refusal_handler))
        except Exception as error:
            if refusal_handler is None:
                raise
            warn_of_failed_handler(refusal_handler.call, error)
            return _RequestDecision(refusal=_flask_response(our_request, verdict, refusal, None))


def _error(decision: _RequestDecision) -> HTTPException:
    """Return the error for the app's handler. Its `description` is the limit that binds, if one refused."""
    verdict: Any = decision.verdict
    limit = None if verdict.binding is None else verdict.charges[verdict.binding].limit.notation
    error = default_exceptions[decision.refusal.status_code](limit, decision.refusal)
    vars(error)["verdict"] = verdict
    return error


def _is_handled(status: int) -> bool:
    """Return whether the app, or the request's blueprint, has an error handler for exactly this status."""
    kind, spec = default_exceptions.get(status), current_app.error_handler_spec
    return any(kind in spec.get(name, {}).get(status, ()) for name in (*request.blueprints, None))


def _flask_response(
    our_request: Request, verdict: Verdict, refusal: OwnResponse, refusal_handler: RefusalHandler | None
) -> Response:
    """Return the refusal as Flask's response, with the same bytes as under the WSGI middleware."""

    def app(_: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return send_refusal(our_request, verdict, refusal, refusal_handler, start_response)

    streams = refusal_handler is not None and refusal_handler.kind == "wsgi"
    # from_app() returns an instance of the app's class; werkzeug's types name its own
    return current_app.response_class.from_app(app, our_request.raw, buffered=not streams)  # type: ignore[return-value]


def _end_on_close(response: Response, tracker: ResponseTracker) -> None:
    """Report the end when the server closes the response, after the app's other hooks have run."""

    def close() -> None:
        tracker.response.started(response.status_code, response.headers.to_wsgi_list())
        tracker.end("ended")

    response.call_on_close(close)
    if response.direct_passthrough:  # werkzeug gives the server a file as it is, and the server closes only that
        tracker.response.started(response.status_code, response.headers.to_wsgi_list())
        body: Any = response.response
        if not end_on_close(body, tracker):
            response.response = ClosingIterator(body, close)


def _add_headers(response: Response, fields: HeaderList, state: RateLimitState | None) -> None:
    """Add those fields to a response that it lacks. `state`: the state that they describe; None for those of a refusal.

    Replaces those added before, because an app may return the same object again.
    """
    if before := getattr(response, _ATTRIBUTE, None):
        setattr(response, _ATTRIBUTE, None)
        response.headers = Headers([line for line in response.headers if line not in before])
    if fields:
        theirs = response.headers
        added = addable_to_refusal(fields, theirs.keys()) if state is None else addable(state.verdict, fields, theirs)
        setattr(response, _ATTRIBUTE, added)
        theirs[len(theirs) :] = added  # takes a third of the time of `headers.add` for each field
