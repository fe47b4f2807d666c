"""The subject of an operator's command: an app with its settings, rules and store, and the description of a request."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.http.views import AsgiRequest, TargetRequest
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import CompiledRule, EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, check_is_store
from ratelimit_mw.stores.url import open_existing

_REQUEST_PARTS: Final = 2  # method and path
_MIN_STORE_TIMEOUT: Final = 3.0  # seconds for a call, as an operator waits longer than a request
_MEMORY: Final = (
    "store: memory:// is in the memory of each process of the app, and cannot be read from another process; "
    "these commands need a store that processes share, such as redis://; a service that `serve` runs answers "
    "POST /v1/peek and /v1/reset itself"
)

SettingsSource = Settings | Mapping[str, Any] | str | Path  # a text or a Path names a file


class DescribedRequest(Struct, frozen=True):
    """The description of a request.

    `line`: method and path, `POST /login`; a path alone is a GET. `ip`: the address of the socket's peer; empty or None
    for none. `user`: the name of the logged-in user. `headers`: `NAME: VALUE` texts, or a mapping. `host`: the same as
    a header `Host`. Raises `ConfigError` for an invalid part, with the name of its option on the command line.
    """

    line: str
    ip: str | None = None
    user: str | None = None
    headers: Sequence[str] | Mapping[str, str] = ()
    host: str | None = None

    def __post_init__(self) -> None:
        self.request()

    @property
    def method_and_target(self) -> tuple[str, str]:
        """The method, and the path with its query."""
        parts = self.line.split() if isinstance(self.line, str) else []
        if len(parts) == 1:
            parts.insert(0, "GET")
        if len(parts) != _REQUEST_PARTS or not parts[0].isalpha() or not parts[1].startswith("/"):
            raise ConfigError(
                f"--request: got {self.line!r}, expected a method and a path such as 'POST /login'", code="RL-051"
            )
        return parts[0].upper(), parts[1]

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI has them."""
        if isinstance(self.headers, str) or not isinstance(self.headers, (Mapping, Sequence)):
            raise ConfigError(
                f"--header: got {self.headers!r:.100}, expected a list of texts such as 'X-Api-Key: abc'", code="RL-051"
            )
        given = self.headers
        lines = [f"{name}: {value}" for name, value in given.items()] if isinstance(given, Mapping) else given
        raw = [header_of(line) for line in lines]
        return raw if self.host is None else [(b"host", _to_bytes("--host", self.host)), *raw]

    def request(self, route: str | None = None) -> AsgiRequest:
        """Return the request. `route`: the framework's template of its path, if known."""
        method, target = self.method_and_target
        try:
            raw_target = target.encode()
        except UnicodeEncodeError:  # the command line had bytes that are not UTF-8
            raise ConfigError(
                f"--request: got {self.line!r}, expected a path in UTF-8, or with escapes such as %FF", code="RL-051"
            ) from None
        if self.ip and (not isinstance(self.ip, str) or parse_address(self.ip) is None):
            raise ConfigError(
                f"--ip: got {self.ip!r}, expected an address such as 192.0.2.1 or 2001:db8::1, or ''", code="RL-051"
            )
        client = (self.ip, 0) if self.ip else None
        scope = scope_from_parts(method, raw_target, self.raw_headers, client, self.user or "")
        return TargetRequest(scope, self.ip or None, route=route)


class Step(Struct, frozen=True):
    """Limits that decide a request at once: those of a middleware, of an endpoint, or of both.

    `endpoint_rules`: the limits of the request's endpoint. `request`: as callables receive it. `store`: that of the
    limits, as in the settings; None for the target's.
    """

    rules: RuleSet
    request: Request
    endpoint_rules: EndpointRules = ()
    store: Any = None


class Target(Struct, frozen=True):
    """An app's settings and rules.

    `find_steps`: returns the steps of a request in order, if the framework's app is known; see `steps_of`.
    `context_of`: the context in which the framework handles the request, e.g. with `flask.request`. `find_steps` and
    callables run in it. `find_endpoint_rules`: returns the limits on all endpoints, if the framework's app is known.
    """

    settings: Settings
    rules: RuleSet
    find_steps: Callable[[DescribedRequest], Iterable[Step]] | None = None
    context_of: Callable[[DescribedRequest], AbstractContextManager[object]] = nullcontext
    find_endpoint_rules: Callable[[], Iterable[CompiledRule]] | None = None

    def steps_of(self, described: DescribedRequest) -> Sequence[Step]:
        """Return the steps that decide a request. Without an app, the rules of the settings are the only one."""
        if self.find_steps is None:
            return [Step(self.rules, described.request())]
        return list(self.find_steps(described))

    @classmethod
    def of(cls, source: "SettingsSource | Target") -> "Target":
        """Return the target of these settings, or of those in a file. Raises `ConfigError`."""
        if isinstance(source, Target):
            return source
        settings = Settings.load(source) if isinstance(source, (str, Path)) else Settings.of(source, {})
        return cls(settings, RuleSet(settings))

    @contextmanager
    def open_store(self) -> Iterator[Store]:
        """Open the store, and close it after the block. A store that the settings contain is used as it is.

        Raises `StoreError` if the store is in the memory of another process, `ConfigError` if only asyncio can use it.
        """
        store = self.settings.store
        if isinstance(store, str):
            if store.startswith("memory:"):
                raise StoreError(_MEMORY)
            opened = open_existing(store, max(self.settings.store_timeout, _MIN_STORE_TIMEOUT))
            try:
                yield opened
            finally:
                opened.close()
            return
        check_is_store(store)
        if isinstance(store, Store):
            yield store
        else:
            raise ConfigError(
                f"store: got {type(store).__name__}, which only asyncio can use; expected the URL of the store, or a "
                "Store with take()",
                code="RL-040",
            )


def header_of(line: str) -> tuple[bytes, bytes]:
    """Return name and value of a header, `NAME: VALUE`. Raises `ConfigError`."""
    name, colon, value = line.partition(":") if isinstance(line, str) else ("", "", "")
    if not colon or not name.strip():
        raise ConfigError(
            f"--header: got {line!r}, expected a name and a value such as 'X-Api-Key: abc'", code="RL-051"
        )
    return _to_bytes("--header", name.strip().lower()), _to_bytes("--header", value.strip())


def _to_bytes(argument: str, text: str) -> bytes:
    if not isinstance(text, str) or not text.isprintable():
        raise ConfigError(f"{argument}: got {text!r}, expected text without control characters", code="RL-051")
    return text.encode()
