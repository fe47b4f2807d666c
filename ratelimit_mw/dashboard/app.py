"""The requests of the dashboard, for any server: who may ask, and what is answered. The fronts only translate."""

from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import DecodeError, Struct, json

from ratelimit_mw.admin.target import Target
from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.dashboard.access import COOKIE, Access, Authorize, Denied, Viewer
from ratelimit_mw.dashboard.calls import NothingLeft, change, look_at, preview_of
from ratelimit_mw.dashboard.data import Data, build, counts_alone
from ratelimit_mw.dashboard.pages import Answer, asset, error_answer, json_answer, login_page
from ratelimit_mw.dashboard.reader import Reader, Snapshot
from ratelimit_mw.dashboard.shown_rules import shown_rules
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings, SettingsValue, is_settings_callable
from ratelimit_mw.stores.live import KEPT_MINUTES

MAX_BODY: Final = 65_536  # bytes
_MOST_SECONDS: Final = KEPT_MINUTES * 60
_SPANS: Final = (600, 3600)
_POSTS: Final = ("login", "logout", "look", "preview", "change")
_MAX_BUILT: Final = 20  # answers to different questions that are kept until the next read
_NOT_COUNTED: Final = Finding(
    "dashboard: metrics = false in the settings, so no process counts, and the page shows no requests; set it to true",
    weakens_limits=False,
    code="RL-145",
)
_OWN_PROCESS: Final = Finding(
    "dashboard: the store is in memory, and metrics_folder is not set, so the page shows the requests of its own "
    "process only; with several, set metrics_folder, or use a store that they share",
    weakens_limits=False,
    code="RL-146",
)


class Call(Struct, frozen=True):
    """A request. `name`: the path below the mount, without the first slash. `root`: that of the mount, as in a URL."""

    method: str
    root: str
    name: str
    query: str
    request: Request
    is_secure: bool
    has_slash: bool = True  # whether the path is more than that of the mount

    @property
    def cookie(self) -> str | None:
        """The value of our cookie."""
        return self.request.cookies.only(COOKIE)

    @property
    def question(self) -> Mapping[str, str]:
        """The query, the last value of each name."""
        return {name: values[-1] for name, values in parse_qs(self.query, max_num_fields=20).items()}


class Page:
    """Answers the requests of one dashboard. Thread-safe.

    `begin` decides who may ask, and `finish` answers; a front reads the body between them. `is_alone`: no other process
    serves the app.
    """

    def __init__(
        self,
        settings: SettingsValue | Path,
        *,
        secret: str | None = None,
        authorize: Authorize | None = None,
        write: bool = False,
        is_alone: bool = False,
    ) -> None:
        loaded = _loaded(settings)
        self.access: Final = Access(loaded, secret, authorize, write=write)
        self._write: Final = write
        self._target: Final = Target(loaded, RuleSet(loaded))
        self._name: Final = _name_of(settings)
        file = Path(settings).name if isinstance(settings, (str, Path)) and not is_settings_callable(settings) else ""
        self._shown: Final = shown_rules(loaded, self._target.rules, file)
        self.reader: Final = Reader(self._target)
        self._built: tuple[Snapshot | None, dict[tuple[Any, ...], Data]] = None, {}
        warn_or_fail(_findings(loaded, is_alone=is_alone), strict=False)

    def begin(self, call: Call, authorized: object = None) -> Viewer | Answer | None:
        """Return who asks, or the answer; None for a login, which has no viewer yet. `authorized`: by `authorize`."""
        is_post = call.method == "POST"
        if is_post and call.name == "login" and self.access.has_secret and _is_same_site(call):
            return None
        try:
            viewer = self.access.viewer(call.request, call.cookie, authorized, self._place(call))
        except Denied as error:
            return self._denied(call, error)
        return self._problem(call, is_post=is_post, token=viewer.token) or viewer

    def _problem(self, call: Call, *, is_post: bool, token: str) -> Answer | None:
        """Return the answer to a request of a viewer that is not allowed."""
        if not call.has_slash:
            return Answer(308, fields=[("Location", f"{call.root}/")])
        if call.method not in ("GET", "HEAD", "POST") or is_post != (call.name in _POSTS):
            allowed = "POST" if call.name in _POSTS else "GET, HEAD"
            return error_answer(405, f"method: got {call.method}, expected {allowed}", [("Allow", allowed)])
        sent = (call.request.header("x-token") or "").encode("utf-8", "replace")
        if is_post and not (_is_same_site(call) and compare_digest(sent, token.encode())):
            return error_answer(403, "X-Token: missing or wrong, expected the token in data.json")
        return None

    def finish(self, call: Call, viewer: Viewer | None, body: bytes) -> Answer:
        """Return the answer to a request of a viewer. Reads the store, so call it from a thread."""
        if viewer is None:
            return self._login(call, body)
        if call.name == "logout":
            self.access.end_session(viewer)
            return json_answer({}, fields=[self._set_cookie(call, "", 0)])
        try:
            if call.name == "data.json":
                answer = json_answer(self._data(call, viewer))
            elif call.method == "POST":
                answer = self._post(call.name, viewer, body)
            else:
                answer = asset(call.name) or error_answer(404, f"path: got {call.name!r:.100}, expected a file")
        except NothingLeft as error:
            answer = error_answer(409, str(error))
        except ConfigError as error:
            answer = error_answer(400, error.problems[0])
        except StoreError as error:
            answer = error_answer(503, str(error))
        if viewer.cookie is None:
            return answer
        return Answer(
            answer.status,
            answer.body,
            answer.kind,
            [*answer.fields, self._set_cookie(call, viewer.cookie)],
            answer.policy,
        )

    def _denied(self, call: Call, error: Denied) -> Answer:
        fields = [("WWW-Authenticate", "Bearer")] if error.status == 401 else []  # noqa: PLR2004  # a status
        if error.retry_after:
            fields = [("Retry-After", str(max(1, round(error.retry_after))))]
        wants_page = "text/html" in (call.request.header("accept") or "")
        if wants_page and not call.has_slash:  # where the form of the login page would be sent elsewhere
            return Answer(308, fields=[("Location", f"{call.root}/")])
        if self.access.has_secret and wants_page:
            message = str(error) if call.request.header("authorization") or call.name == "login" else ""
            return login_page(error.status, message, fields)
        return error_answer(error.status, str(error), fields)

    def _login(self, call: Call, body: bytes) -> Answer:
        sent = parse_qs(body.decode("utf-8", "replace"), max_num_fields=20).get("secret", [""])[-1]
        try:
            self.access.check(call.request, sent)
        except Denied as error:
            return self._denied(call, error)
        value, seconds = self.access.new_session(self._place(call))
        return Answer(303, fields=[("Location", f"{call.root}/"), self._set_cookie(call, value, seconds)])

    def _post(self, name: str, viewer: Viewer, body: bytes) -> Answer:
        if name == "change" and not self._may_write(viewer):
            why = "write = false" if not self._write else "the role of this viewer is not operator"
            return error_answer(403, f"change: not allowed, because {why}")
        try:
            asked = json.decode(body, type=dict[str, Any])
        except (DecodeError, ValueError) as error:
            return error_answer(400, f"body: {error}, expected a JSON object")
        if name == "change":
            done = change(self._target, asked, viewer.name)
            self.reader.forget_changes()
            return json_answer(done)
        try:
            if name == "look":
                return json_answer(look_at(self._target, self._shown, asked))
            return json_answer(preview_of(self.reader.snapshot(), self._shown, asked))
        except ConfigError as error:  # an error status for each half-typed text would fill the console of a browser
            return json_answer({"mistake": error_text(error)})

    def _place(self, call: Call) -> str:
        """Return the page that a cookie is for: another one may have the same secret."""
        return f"{self._name}:{call.root}"

    def _set_cookie(self, call: Call, value: str, seconds: int | None = None) -> tuple[str, str]:
        age = "" if seconds is None else f"; Max-Age={seconds}"
        secure = "; Secure" if call.is_secure or self.access.is_secure(call.request) else ""
        return "Set-Cookie", f"{COOKIE}={value}; Path={call.root or '/'}; HttpOnly; SameSite=Strict{age}{secure}"

    def _may_write(self, viewer: Viewer) -> bool:
        return self._write and viewer.role == "operator"

    def _data(self, call: Call, viewer: Viewer) -> Data:
        question = call.question
        seconds = _number(question, "seconds", 300, range(1, _MOST_SECONDS + 1))
        span = _number(question, "clients", _SPANS[0], _SPANS)
        rule = question.get("rule")
        snapshot = self.reader.snapshot(span)
        # without a lock: at worst, threads build the same data
        known, built = self._built
        if known is not snapshot or len(built) >= _MAX_BUILT:
            self._built = snapshot, (built := {})
        key = seconds, rule, span
        if key not in built:
            place = self._shown, self._name
            built[key] = build(snapshot, self._target.settings, *place, seconds, rule, span)
        data = built[key]
        you = {"name": viewer.name, "role": viewer.role, "until": viewer.until}
        return {**data, "you": you, "write": self._may_write(viewer), "token": viewer.token}


def _is_same_site(call: Call) -> bool:
    """Return whether a browser says that the page itself sends a request; other programs say nothing."""
    return call.request.header("sec-fetch-site") in (None, "same-origin", "none")


def error_text(error: ConfigError) -> str:
    """Return the first problem, without its code."""
    return error.problems[0].rpartition(" [RL-")[0] or error.problems[0]


def _loaded(settings: SettingsValue | Path) -> Settings:
    if isinstance(settings, Path) or (isinstance(settings, str) and not is_settings_callable(settings)):
        return Settings.load(settings)
    return Settings.of(settings, {})


def _name_of(settings: object) -> str:
    """Return the name of the app: that of the folder of `limits.toml`, or of another file; else `app`."""
    if not isinstance(settings, (str, Path)):
        return "app"
    path = Path(settings)
    return path.resolve().parent.name or "app" if path.stem == "limits" else path.stem


def _findings(settings: Settings, *, is_alone: bool) -> list[Finding]:
    if not settings.metrics:
        return [_NOT_COUNTED]
    return [_OWN_PROCESS] if counts_alone(settings) and not is_alone else []


def _number(question: Mapping[str, str], name: str, default: int, allowed: Any) -> int:
    text = question.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) in allowed):  # noqa: PLR2004  # digits
        expected = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else " or ".join(map(str, allowed))
        raise ConfigError(f"{name}: got {text!r:.100}, expected {expected}", code="RL-072")
    return int(text)
