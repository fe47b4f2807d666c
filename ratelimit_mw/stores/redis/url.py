"""Reads the URL of a Redis store and explains what is wrong with it."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import ConnectionPool, RedisError, SSLConnection
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT
from ratelimit_mw.stores.redis.protocol import Address

SCHEMES: Final = ("redis://", "rediss://", "unix://")
CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
SENTINEL_SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
_PROTOCOL_OPTIONS: Final = {
    "protocol": 2,
    "decode_responses": False,
}  # take precedence over the URL, because replies are parsed as bytes of RESP2
_TIMEOUTS: Final = ("socket_timeout", "socket_connect_timeout")
_PORT: Final = 6379  # default
_OPTION: Final = re.compile(r"[a-z_]{1,50}")  # any other text may be a part of a password


class ConnectionFactory(NamedTuple):
    """Makes connections to a server: a class of the client library, and its arguments."""

    connection_class: Any
    options: dict[str, Any]

    def __repr__(self) -> str:
        """Omit the options, which may contain a password: error reports show local variables."""
        return f"ConnectionFactory({self.connection_class.__name__})"

    def raw_connection(self) -> Any:
        """Return a connection of the client library that is not open yet."""
        return self.connection_class(**self.options)

    def at(self, address: Address | None) -> "ConnectionFactory":
        """Return a factory for another address, or this one if the address is None."""
        if address is None:
            return self
        return self._replace(options=self.options | {"host": address[0], "port": address[1]})

    @property
    def address(self) -> Address | None:
        """Host and port; None for a Unix socket."""
        if "path" in self.options:
            return None
        return self.options.get("host", "localhost"), self.options.get("port", _PORT)

    @property
    def label(self) -> str:
        """The server's address, or the path of its socket, as log lines show it."""
        address = self.address
        return f"{self.options['path']}" if address is None else f"{address[0]}:{address[1]}"

    @property
    def tls(self) -> bool:
        """Whether connections use TLS."""
        return issubclass(self.connection_class, (SSLConnection, AsyncSSLConnection))


def connection_factory(url: str, timeout: float | None = None) -> ConnectionFactory:
    """Read a URL, for threads. Raises `ConfigError`.

    `timeout`: seconds to connect, and seconds for each read by redis-py; None is `CONNECT_TIMEOUT`.
    """
    timeouts = dict.fromkeys(_TIMEOUTS, timeout or CONNECT_TIMEOUT)
    return _connection_factory(ConnectionPool, url, retry=Retry(NoBackoff(), 0), **timeouts)


def async_connection_factory(url: str) -> ConnectionFactory:
    """Read a URL, for asyncio. Raises `ConfigError`.

    Its connections have no timeouts, because timeouts of redis-py count stalls of the event loop. Use
    `timeout_without_stalls`.
    """
    timeouts = dict.fromkeys(_TIMEOUTS, None)
    return _connection_factory(AsyncConnectionPool, url, retry=AsyncRetry(NoBackoff(), 0), **timeouts)


def _connection_factory(pool: Any, url: str, **options: Any) -> ConnectionFactory:
    # the callers allow no retries, because an EVALSHA that is sent twice charges twice
    if not url.startswith(SCHEMES):
        allowed = ", ".join([*SCHEMES, *CLUSTER_SCHEMES, *SENTINEL_SCHEMES])
        raise ConfigError(f"store: got {url.split('://', 1)[0]!r} as scheme, expected {allowed}", code="RL-038")
    reject_timeouts(url)
    made: ConnectionFactory | None = None
    with suppress(ValueError, TypeError, RedisError):
        read = pool.from_url(url, **options)  # parses the URL and opens no connection
        candidate = ConnectionFactory(read.connection_class, read.connection_kwargs | _PROTOCOL_OPTIONS)
        candidate.raw_connection()  # raises for unknown options
        _check_database(url, candidate)
        made = candidate
    if made is None:  # not the text of redis-py's error, which may quote a part of a password as the port
        raise ConfigError(
            f"store: the URL cannot be read{_describe_mistake(pool, url, options)}, expected {_expected(url)}; "
            "in a password / # ? @ are written %2F %23 %3F %40",
            code="RL-038",
        )
    return made


def reject_timeouts(url: str) -> None:
    """Raise `ConfigError` for a timeout in the URL, which the timeout of the store would replace."""
    for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if name in _TIMEOUTS:
            raise ConfigError(
                f"store: the URL has {name}, which has no effect; set store_timeout, or timeout of the store, the "
                "seconds for a complete call",
                code="RL-038",
            )


def _expected(url: str) -> str:
    if url.startswith("unix://"):
        return "unix://USER:PASSWORD@/PATH?db=DB with a number from 0 as DB and the options of redis-py"
    return "redis://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE with a number from 0 as DB and the options of redis-py"


def _check_database(url: str, read: ConnectionFactory) -> None:
    """Raise `ValueError` for an invalid database, for which redis-py takes 0, and for a path that it would cut."""
    if url.startswith("unix://") and _socket_mistake(url):
        raise ValueError("no path")
    path = "" if url.startswith("unix://") else unquote(urlsplit(url).path).strip("/")
    if (path and not path.isdecimal()) or read.options.get("db", 0) < 0:
        raise ValueError("no database")


def _socket_mistake(url: str) -> str:
    """Describe what is wrong with the place of a socket file; empty if nothing is."""
    before_query = url.removeprefix("unix://").partition("?")[0]
    host, _, path = before_query.rpartition("@")[2].partition("/")
    if host:  # redis-py would leave it out
        return ": the path of the socket file needs a '/' before it, as in unix:///run/redis.sock"
    if not path or path.endswith("/"):
        return ": it names no socket file, as unix:///run/redis.sock does"
    return ""


def _slash_mistake(before_query: str) -> str:
    if "@" in before_query.partition("/")[2]:
        return ": there is a '/' before '@', so a password must have %2F in its place"
    return ""


def _describe_mistake(pool: Any, url: str, options: Mapping[str, Any]) -> str:
    """Describe the part of a URL that the client library rejects, without its value; empty if unknown."""
    scheme, _, rest = url.partition("://")
    if "#" in rest:
        return ": everything from '#' is cut off, so a password must have %23 in its place"
    before_query, _, query = rest.partition("?")
    if mistake := _socket_mistake(url) if scheme == "unix" else _slash_mistake(before_query):
        return mistake
    if "@" in query and "@" not in before_query:
        return ": there is a '?' before '@', so a password must have %3F in its place"
    try:
        urlsplit(f"{scheme}://{before_query}").port  # noqa: B018  # the property validates the port
    except ValueError:
        return ": the port is not a number from 0 to 65535"
    for name, value in parse_qsl(query, keep_blank_values=True):
        try:
            one = pool.from_url(f"{scheme}://{'/s' if scheme == 'unix' else 'h'}?{urlencode({name: value})}", **options)
            one.connection_class(**one.connection_kwargs)
        except (ValueError, TypeError, RedisError):
            fix = "; for TLS, begin the URL with rediss://" if name == "ssl" else ""
            shown = f"the option {name!r}" if _OPTION.fullmatch(name) else "an option"
            return f": {shown} is unknown or has a wrong value{fix}"
    return ""
