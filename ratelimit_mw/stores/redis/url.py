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
from ratelimit_mw.stores.redis.deadline import ORPHAN_TIMEOUT
from ratelimit_mw.stores.redis.topology import Address

SCHEMES: Final = ("redis://", "rediss://", "unix://")
CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
SENTINEL_SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
_PROTOCOL_OPTIONS: Final = {"protocol": 2, "decode_responses": False}  # as we read them, whatever the URL has
_PORT: Final = 6379  # unless the URL names one
_OPTION: Final = re.compile(r"[a-z_]{1,50}")  # anything else may be a piece of a password


class ConnectionFactory(NamedTuple):
    """How to make connections to a server: a class of the client library, and its arguments."""

    kind: Any
    options: dict[str, Any]

    def __repr__(self) -> str:
        """Without the options, of which one may be a password: tools that show local variables show this."""
        return f"ConnectionFactory({self.kind.__name__})"

    def raw_connection(self) -> Any:
        """A connection that is not open yet."""
        return self.kind(**self.options)

    def at(self, place: Address | None) -> "ConnectionFactory":
        """The same for another server, if there is one."""
        return ConnectionFactory(self.kind, self.options | {"host": place[0], "port": place[1]}) if place else self

    @property
    def address(self) -> Address | None:
        """Host and port; None for a socket in the file system."""
        if "path" in self.options:
            return None
        return self.options.get("host", "localhost"), self.options.get("port", _PORT)

    @property
    def place(self) -> str:
        """The server's place as log lines name it."""
        address = self.address
        return f"{self.options['path']}" if address is None else f"{address[0]}:{address[1]}"

    @property
    def tls(self) -> bool:
        """Whether the connections are over TLS."""
        return issubclass(self.kind, (SSLConnection, AsyncSSLConnection))


def connection_factory(url: str, timeout: float) -> ConnectionFactory:
    """What a URL says, for threads. Raises `ConfigError`."""
    return _connection_factory(ConnectionPool, url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def async_connection_factory(url: str, timeout: float) -> ConnectionFactory:
    """What a URL says, for asyncio. Raises `ConfigError`."""
    return _connection_factory(AsyncConnectionPool, url, socket_timeout=timeout, retry=AsyncRetry(NoBackoff(), 0))


def _connection_factory(pool: Any, url: str, **options: Any) -> ConnectionFactory:
    if not url.startswith(SCHEMES):
        allowed = ", ".join([*SCHEMES, *CLUSTER_SCHEMES, *SENTINEL_SCHEMES])
        raise ConfigError(f"store: got {url.split('://', 1)[0]!r} as scheme, expected {allowed}")
    # no retry at all: an EVALSHA that is sent again charges again
    options["socket_connect_timeout"] = ORPHAN_TIMEOUT
    made: ConnectionFactory | None = None
    with suppress(ValueError, TypeError, RedisError):
        read = pool.from_url(url, **options)  # how the client library reads it; nothing is opened
        candidate = ConnectionFactory(read.connection_class, read.connection_kwargs | _PROTOCOL_OPTIONS)
        candidate.raw_connection()  # to hear of options that it does not know
        _check_database(url, candidate)
        made = candidate
    if made is None:  # without the error's own text: it may quote a piece of a password as the port
        raise ConfigError(
            f"store: the URL cannot be read{_describe_mistake(pool, url, options)}, expected "
            "redis://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE with a number from 0 as DB and the options of redis-py; "
            "in a password / # ? @ are written %2F %23 %3F %40"
        )
    return made


def _check_database(url: str, read: ConnectionFactory) -> None:
    """The client library passes over a path that is no number, and then it is database 0. Raises `ValueError`."""
    path = "" if url.startswith("unix://") else unquote(urlsplit(url).path).strip("/")
    if (path and not path.isdecimal()) or read.options.get("db", 0) < 0:
        raise ValueError("no database")


def _describe_mistake(pool: Any, url: str, options: Mapping[str, Any]) -> str:
    """Which part of a URL the client library cannot read, in words; empty where that is not known. Never its value."""
    scheme, _, rest = url.partition("://")
    if "#" in rest:
        return ": everything from '#' is cut off, so a password must have %23 in its place"
    place, _, query = rest.partition("?")
    if "@" in place.partition("/")[2] and scheme != "unix":
        return ": there is a '/' before '@', so a password must have %2F in its place"
    if "@" in query and "@" not in place:
        return ": there is a '?' before '@', so a password must have %3F in its place"
    try:
        urlsplit(f"{scheme}://{place}").port  # noqa: B018  # reading it checks it
    except ValueError:
        return ": the port is no number from 0 to 65535"
    for name, value in parse_qsl(query, keep_blank_values=True):
        try:
            one = pool.from_url(f"{scheme}://{'/' if scheme == 'unix' else 'h'}?{urlencode({name: value})}", **options)
            one.connection_class(**one.connection_kwargs)
        except (ValueError, TypeError, RedisError):
            fix = "; TLS is asked for with rediss://" if name == "ssl" else ""
            shown = f"the option {name!r}" if _OPTION.fullmatch(name) else "an option"
            return f": {shown} is unknown or has a wrong value{fix}"
    return ""
