"""Opens and inspects stores by URL."""

from collections.abc import Iterable
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.validation import did_you_mean
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.memory import MemoryStore

PREFIX: Final = "rl:"  # of all keys; stores that are created in code may have another one
_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")


def open_store(url: str, timeout: float) -> Store:
    """Open a store for threads: `memory://`, `redis://host:port/db`, `redis+cluster://host:port,host:port` etc.

    Raises `ConfigError` for an invalid URL, or if the client library for Redis is missing.
    """
    return MemoryStore() if _is_memory(url) else _redis().RedisStore(url, timeout=timeout)


def open_async_store(url: str, timeout: float) -> AsyncStore:
    """Open a store for asyncio. See `open_store`."""
    return MemoryStore() if _is_memory(url) else _redis().AsyncRedisStore(url, timeout=timeout)


def inspect_store(url: str, algorithms: Iterable[str], timeout: float) -> Any:
    """Inspect the servers of a URL, see `inspection.inspect`. Return None for a store in memory.

    Raises `ConfigError` as `open_store` does.
    """
    if _is_memory(url):
        return None
    _redis()
    from ratelimit_mw.stores.redis.inspection import inspect  # noqa: PLC0415  # as in _redis

    return inspect(url, PREFIX, algorithms, timeout)


def redacted_url(url: str) -> str:
    """Return a URL that `open_store` accepts without its user, password and options."""
    scheme, _, rest = url.partition("://")
    ends = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    path = rest[ends:].partition("?")[0].partition("#")[0]
    return f"{scheme}://{rest[:ends].rpartition('@')[2]}{path}"


def _is_memory(url: str) -> bool:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("memory", *_REDIS) or (scheme == "memory" and rest):
        got = f"the scheme {scheme!r}" if separator else "no scheme"  # not the whole URL, which may contain a password
        allowed = ", ".join(f"{one}://" for one in ("memory", *_REDIS))
        raise ConfigError(f"store: got {got}{did_you_mean(scheme, _REDIS)}; expected {allowed}", code="RL-038")
    return scheme == "memory"


def _redis() -> Any:
    try:
        from ratelimit_mw.stores import redis  # noqa: PLC0415  # only Redis stores need the client library
    except ImportError as error:
        raise ConfigError(
            f"store: Redis needs its client, pip install 'ratelimit-mw[redis]' ({error})", code="RL-039"
        ) from error
    return redis
