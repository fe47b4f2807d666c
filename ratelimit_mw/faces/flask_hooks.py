"""What Flask calls before and after each request."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ratelimit_mw.advice import Processes
from ratelimit_mw.callables import name_of
from ratelimit_mw.faces.flask_marks import levels_of
from ratelimit_mw.faces.flask_request import FlaskRequest, itself
from ratelimit_mw.faces.missing import needs
from ratelimit_mw.faces.wsgi_send import beyond_the_body, refuse
from ratelimit_mw.following import Following, following
from ratelimit_mw.gate import Gate
from ratelimit_mw.marks import Mark
from ratelimit_mw.matching import Marked
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.on_refused import Answerer
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.request import Request
from ratelimit_mw.response import HeaderList, beside, headers
from ratelimit_mw.response import Response as Refusal
from ratelimit_mw.verdict import Verdict

with needs("flask"):
    from flask import Request as FlasksOwn
    from flask import Response, current_app, g, has_request_context, request
    from werkzeug.datastructures import Headers
    from werkzeug.exceptions import HTTPException, default_exceptions
    from werkzeug.routing import Rule

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_ENDPOINTS: Final = 4096  # whose limits are remembered
_OURS: Final = "_ratelimit_mw"  # what we keep on Flask's request, and on its response


class _Asked(Struct):
    """What was found of one request.

    `shown`: what its headers tell of. `refused`: how it is answered instead. `fields`: what a refusal says in headers
    where an error handler of the app writes it. `following`: who waits for the end of the response.
    """

    shown: Outcome | None = None
    refused: Any = None
    fields: HeaderList | None = None
    following: Following | None = None


class Hooks:
    """The two functions that limit one app."""

    def __init__(self, gate: Gate) -> None:
        self.gate: Final = gate
        self._style: Final = gate.settings.headers
        self._processes: Final = Processes(gate.settings.store)
        self._remembered: Final = lru_cache(_ENDPOINTS)(self._standing)

    def before(self) -> Any:
        """The answer to a request that is refused; None for one that is admitted.

        Raises what the app's error handler is for, where it has one.
        """
        own = itself(request)
        asked: _Asked | None = getattr(own, _OURS, None)
        if asked is None:
            asked = self._ask(own)
            setattr(own, _OURS, asked)
        if asked.fields is not None:
            raise default_exceptions[asked.refused.status_code](response=asked.refused)
        return asked.refused

    def after(self, response: Response) -> Response:
        """Add our headers. What was answered before it came to `before` is asked now: it must not be free."""
        own = itself(request)
        if not hasattr(own, _OURS):
            refused = self._asked_late()
            if refused is not None:
                response.close()
                response = refused
        asked: _Asked = getattr(own, _OURS)
        _show(response, headers(asked.shown.verdict, self._style) if asked.shown else asked.fields or [])
        if asked.following is not None:
            _follow(response, asked.following)
        return response

    def failed(self, *_: object, **__: object) -> None:
        """An error that nobody in the app handles: there may be no response that could be followed."""
        asked: _Asked | None = getattr(itself(request), _OURS, None) if has_request_context() else None
        if asked is not None and asked.following is not None:
            asked.following.end("raised")

    def _asked_late(self) -> Response | None:
        try:
            refused = self.before()
        except HTTPException as error:
            refused = current_app.handle_user_exception(error)
        return None if refused is None else current_app.make_response(refused)

    def close(self) -> None:
        """Close the store if it was made for this app. Servers end without telling; call it where yours does."""
        self.gate.close()

    def _ask(self, asked: FlasksOwn) -> _Asked:
        environ, rule = asked.environ, asked.url_rule
        if self._processes.unknown:
            self._processes.look(environ)
        client, outer = environ.get("REMOTE_ADDR") or None, environ.get("ratelimit_mw")
        own = FlaskRequest(environ, client, outer, None if rule is None else rule.rule)
        verdict = self.gate.admit(own, () if rule is None else self._marked(asked, rule))
        g.ratelimit = outcome = outer or Outcome(None, self.gate)
        if verdict is None:
            return _Asked()
        outcome.add(verdict, self.gate)
        if not verdict.allowed:
            return self._refused(own, verdict)
        environ["ratelimit_mw"] = outcome
        followed = None if own.followers is None else following(own, outcome)
        if self._style == "none" or outcome.shown:
            return _Asked(following=followed)
        outcome.shown = True
        return _Asked(shown=outcome, following=followed)

    def _marked(self, asked: FlasksOwn, rule: Rule) -> Marked:
        """What stands on the view; none is known of what is not routed: 404, 405, and a slash that is missing."""
        app = itself(current_app)
        endpoint = rule.endpoint
        view = app.view_functions.get(endpoint)
        blueprints = tuple([app.blueprints[name] for name in asked.blueprints if name in app.blueprints])
        try:
            return self._remembered(view, endpoint, rule.rule, asked.method, blueprints, Mark.latest)
        except TypeError:  # an instance as a view, that cannot be hashed
            return self._standing(view, endpoint, rule.rule, asked.method, blueprints, Mark.latest)

    def _standing(
        self, view: Any, endpoint: str, route: str, method: str, blueprints: Sequence[object], _: int
    ) -> Marked:
        """The same; the last one tells it from what stood there before a further mark was put somewhere."""
        methods = [
            allowed
            for rule in current_app.url_map.iter_rules(endpoint)
            if rule.rule == route
            for allowed in rule.methods or ()
        ]
        levels = levels_of(view, endpoint, route, methods, method, blueprints)
        return self.gate.compiled(*levels[0], *levels[1:]) if levels else ()

    def _refused(self, own: Request, verdict: Verdict) -> _Asked:
        refusal, answerer = self.gate.refusal(own, verdict), self.gate.answerer
        if answerer is None and _is_handled(refusal.status):
            return _Asked(refused=_response(own, verdict, refusal, None), fields=beyond_the_body(refusal))
        try:
            return _Asked(refused=_response(own, verdict, refusal, answerer))
        except Exception as error:
            if answerer is None:
                raise
            warn_rarely(f"on_refused {name_of(answerer.call)}", "raised, our own answer is sent", error=error)
            return _Asked(refused=_response(own, verdict, refusal, None))


def _is_handled(status: int) -> bool:
    """Whether the app, or a blueprint of this request, has an error handler for just this status."""
    kind, spec = default_exceptions.get(status), current_app.error_handler_spec
    return any(kind in spec.get(name, {}).get(status, ()) for name in (*request.blueprints, None))


def _response(own: Request, verdict: Verdict, refusal: Refusal, answerer: Answerer | None) -> Response:
    """The same bytes as under the middleware."""

    def app(_: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return refuse(own, verdict, refusal, answerer, start_response)

    streams = answerer is not None and answerer.kind == "wsgi"
    # werkzeug's types say that it makes one of its own class; it makes one of the app's
    return current_app.response_class.from_app(app, own.raw, buffered=not streams)  # type: ignore[return-value]


def _follow(response: Response, followed: Following) -> None:
    """Have the end told when the server closes the response: by then it is as the app's other hooks have left it."""

    def close() -> None:
        followed.response.started(response.status_code, response.headers.to_wsgi_list())
        followed.end("ended")

    response.call_on_close(close)


def _show(response: Response, fields: HeaderList) -> None:
    """Add fields of ours, once: an app may keep a response, and answer with it again and again."""
    if before := getattr(response, _OURS, None):
        setattr(response, _OURS, None)
        response.headers = Headers([line for line in response.headers if line not in before])
    if fields:
        theirs = list(response.headers)
        own = [line for line in beside(fields, {name.lower() for name, _ in theirs}) if line not in theirs]
        setattr(response, _OURS, own)
        for name, value in own:
            response.headers.add(name, value)
