"""Opens and inspects stores by URL."""

import re
from collections.abc import Iterable
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.validation import did_you_mean
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.memory import MemoryStore

PREFIX: Final = "rl:"  # the prefix of all keys; a store that is created in code may have another prefix
_LOCAL: Final = ("memory", "sqlite")
_ADDRESS: Final = re.compile(r"(localhost|[A-Za-z0-9.-]+(?=:))(:[0-9]{1,5})?(/[0-9]{1,3})?")
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_.-]+){2,}")
_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")


def open_store(url: str, timeout: float) -> Store:
    """Open a store for threads: `memory://`, `sqlite:///path`, `redis://host:port/db`, `redis+cluster://host:port` etc.

    Raises `ConfigError` for an invalid URL or file, or if the client library for Redis is missing.
    """
    store: Store | None = _local_store(url, timeout)
    return _redis().RedisStore(url, timeout=timeout) if store is None else store


def open_async_store(url: str, timeout: float) -> AsyncStore:
    """Open a store for asyncio. See `open_store`."""
    store: AsyncStore | None = _local_store(url, timeout)
    return _redis().AsyncRedisStore(url, timeout=timeout) if store is None else store


def inspect_store(
    url: str, algorithms: Iterable[str], timeout: float, *, remembers_refused: bool = False, counts: bool = False
) -> Any:
    """Inspect the servers of a URL, see `inspection.inspect`. Return None for a store without a server.

    Raises `ConfigError` as `open_store` does.
    """
    if _scheme_of(url) in _LOCAL:
        return None
    _redis()
    from ratelimit_mw.stores.redis.inspection import inspect  # noqa: PLC0415  # as in _redis

    return inspect(url, PREFIX, algorithms, timeout, remembers_refused=remembers_refused, counts=counts)


def open_unchecked(url: str, timeout: float) -> Any:
    """Return a store whose file is neither created nor checked before the first call; None for another URL."""
    return _sqlite().UncheckedStore(url, timeout=timeout) if _scheme_of(url) == "sqlite" else None


def open_existing(url: str, timeout: float) -> Any:
    """Open a store like `open_store`, but neither create its file nor move a broken file aside.

    The store's methods raise `StoreError` if the file is missing or broken.
    """
    if _scheme_of(url) == "sqlite":
        return _sqlite().ExistingStore(url, timeout=timeout)
    return open_store(url, timeout)


def inspect_store_file(url: str) -> str:
    """Report what the store would find at the path of its file, without a change to it; empty text for other URLs.

    Raises `ConfigError` as the start of an app does.
    """
    if _scheme_of(url) != "sqlite":
        return ""
    sqlite = _sqlite()
    found: str = sqlite.inspect_file(sqlite.checked_path(url))
    return found


def redacted_url(url: str) -> str:
    """Remove the user, the password and the options from a valid URL of a store."""
    scheme, _, rest = url.partition("://")
    ends = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    path = rest[ends:].partition("?")[0].partition("#")[0]
    return f"{scheme}://{rest[:ends].rpartition('@')[2]}{path}"


def _local_store(url: str, timeout: float) -> Any:
    """Return a store of this process or host, which works in threads and in asyncio; None for a server's URL."""
    scheme = _scheme_of(url)
    if scheme == "memory":
        return MemoryStore()
    return _sqlite().SQLiteStore(url, timeout=timeout) if scheme == "sqlite" else None


def _scheme_of(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (*_LOCAL, *_REDIS) or (scheme == "memory" and rest):
        got = f"the scheme {scheme!r}" if separator else "no scheme"  # not the whole URL, which may contain a password
        allowed = ", ".join(f"{one}://" for one in (*_LOCAL, *_REDIS))
        if scheme.startswith("valkey"):
            hint = f", did you mean '{scheme.replace('valkey', 'redis', 1)}', also for Valkey?"
        else:
            hint = did_you_mean(scheme, ("sqlite", *_REDIS)) if separator else _guess(url)
        raise ConfigError(f"store: got {got}{hint}; expected {allowed}", code="RL-038")
    return scheme


def _guess(text: str) -> str:
    """Return `, did you mean ...?` for an address or a path without a scheme, else an empty text."""
    if text == "memory":
        meant = f"{text}://"
    elif found := _ADDRESS.fullmatch(text):
        meant = f"redis://{found[1]}{found[2] or ':6379'}{found[3] or '/0'}"
    elif _PATH.fullmatch(text):
        meant = f"unix://{text}" if text.endswith(".sock") else f"sqlite://{text}"
    else:  # it may contain a password
        return ""
    return f", did you mean {meant!r}?"


def _redis() -> Any:
    try:
        from ratelimit_mw.stores import redis  # noqa: PLC0415  # only Redis stores need the client library
    except ImportError as error:
        raise ConfigError(f"store: {error}", code="RL-039") from error
    return redis


def _sqlite() -> Any:
    try:
        from ratelimit_mw.stores.sqlite import inspection  # noqa: PLC0415  # a Python may be built without sqlite3
    except ImportError as error:
        raise ConfigError(
            f"store: sqlite:// needs the module sqlite3, which this Python lacks ({error})", code="RL-061"
        ) from error
    return inspection
