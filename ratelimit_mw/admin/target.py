"""The target of an operator's commands: the settings, the compiled rules, and the store that an app uses."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ratelimit_mw.admin.described import DescribedRequest
from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, check_is_store
from ratelimit_mw.stores.url import open_existing

_MIN_STORE_TIMEOUT: Final = 3.0  # seconds for a call, as an operator waits longer than a request
_MEMORY: Final = (
    "store: memory:// is in the memory of each process of the app, and cannot be read from another process; "
    "these commands need a store that processes share, such as redis://; a service that `serve` runs answers "
    "POST /v1/peek and /v1/reset itself"
)

Endpoint = tuple[EndpointRules, str | None]  # the limits of an endpoint, and the template of its path
Inner = tuple[RuleSet, EndpointRules]  # limits of an endpoint, and the rules that they were compiled with
SettingsSource = Settings | Mapping[str, Any] | str | Path  # a text or a Path names a file


class Target(Struct, frozen=True):
    """An app's settings and rules.

    `endpoint_of`: finds the endpoint of a request, if the framework's app is known. `context_of`: the context in which
    the framework handles the request, e.g. with `flask.request`. `endpoint_of` and callables run in it.
    `request_of`: makes the request that callables receive; None means one of ASGI.
    `inner_of`: finds limits that decide a request after `rules` has admitted it, as throttles do.
    """

    settings: Settings
    rules: RuleSet
    endpoint_of: Callable[[DescribedRequest], Endpoint] | None = None
    context_of: Callable[[DescribedRequest], AbstractContextManager[object]] = nullcontext
    inner_of: Callable[[DescribedRequest], Inner] | None = None
    request_of: Callable[[DescribedRequest], Request] | None = None

    @classmethod
    def of(cls, source: SettingsSource) -> "Target":
        """Return the target of these settings, or of those in a file. Raises `ConfigError`."""
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
