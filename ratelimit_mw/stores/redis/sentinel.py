"""Connections to the master of a Sentinel service.

The store queries the Sentinels in the background: when it opens a connection, when it loses one, when the server
becomes read-only, and twice a second. The latter is necessary because a master that was replaced on purpose keeps
answering for a while.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.validation import did_you_mean
from ratelimit_mw.stores.redis.async_transport import Channel, drop
from ratelimit_mw.stores.redis.deadline import timeout_without_stalls
from ratelimit_mw.stores.redis.failures import CALL_ERRORS, aconnection_error
from ratelimit_mw.stores.redis.protocol import Address, RoutedCommand, SendTo
from ratelimit_mw.stores.redis.sync_transport import ServerTransport, query_once
from ratelimit_mw.stores.redis.url import (
    ConnectionFactory,
    async_connection_factory,
    connection_factory,
    reject_timeouts,
)

_PORT: Final = 26379  # default
_LAST_PORT: Final = 65535
_MAX_NAMES_LENGTH: Final = 300  # characters of the service names in an error
_QUERY_TIMEOUT: Final = 0.5  # seconds; a query of a lost server must end before its successor is elected
_read_for_threads: Final = partial(connection_factory, timeout=_QUERY_TIMEOUT)
_FORM: Final = (
    "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB?OPTION=VALUE with the options of redis-py, "
    "sentinel_username and sentinel_password; in a password / # ? @ are written %2F %23 %3F %40"
)


class Sentinels:
    """The Sentinels of a service, in the order of queries. Does no I/O."""

    def __init__(self, service: str, addresses: list[Address]) -> None:
        self._service = service
        self._addresses = addresses  # first the one that named the master last time

    @property
    def addresses(self) -> list[Address]:
        """A copy of the list of addresses."""
        return list(self._addresses)

    def only(self, address: Address) -> "Sentinels":
        """Return the same service with one of its Sentinels."""
        return Sentinels(self._service, [address])

    async def master(self, send_to: SendTo) -> Address:
        """Query the Sentinels in order until one names the master. Raises `StoreError` if none does."""
        reasons: list[str] = []
        rejected = False
        for address in self._addresses:
            try:
                reply = await send_to(RoutedCommand(address, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)))
                if not reply:
                    self._raise_unknown_service(await send_to(RoutedCommand(address, ("SENTINEL", "MASTERS"))))
                master = _address(reply)
            except StoreError as error:
                label = f"{address[0]}:{address[1]}"
                if error.rejected:
                    warn_throttled(f"store {label} rejects this app", "%s", error, code="RL-204")
                reasons.append(f"Sentinel {label}: {error}")
                rejected |= error.rejected
                continue
            self._addresses = sorted(self._addresses, key=address.__ne__)
            return master
        raise StoreError("; ".join(reasons), rejected=rejected)

    def query_another_first(self) -> None:
        """From now on, query another Sentinel first: the last one named an unusable master, so it may be cut off."""
        self._addresses = [*self._addresses[1:], *self._addresses[:1]]

    def _raise_unknown_service(self, masters: Any) -> None:
        try:
            names = sorted(name.decode() for master in masters for name in _field_values(master, b"name"))
        except (AttributeError, TypeError, ValueError):
            raise _invalid_reply(masters) from None
        there = ", ".join(map(repr, names))[:_MAX_NAMES_LENGTH] or "none"
        text = f"no service {self._service!r}{did_you_mean(self._service, names)}; there are {there}"
        raise StoreError(text, rejected=True)


def _address(reply: Any) -> Address:
    """Return the master's address from the reply of a Sentinel."""
    try:
        host, port = reply[0].decode(), int(reply[1])
    except (AttributeError, LookupError, TypeError, ValueError):
        raise _invalid_reply(reply) from None
    if not host or not host.isprintable() or not 0 < port <= _LAST_PORT:
        raise _invalid_reply(reply)
    return host, port


def _invalid_reply(reply: object) -> StoreError:
    return StoreError(f"it answered {reply!r:.100}, which is not the address of a master")


class _SentinelUrl(NamedTuple):
    """The contents of a Sentinel URL."""

    servers: ConnectionFactory  # for the servers of the service, whose addresses the Sentinels know
    sentinel_servers: ConnectionFactory  # for the Sentinels
    sentinels: Sentinels


def master_transport(url: str, timeout: float) -> ServerTransport:
    """Return the transport to the master, for threads. Raises `ConfigError`."""
    servers, sentinel_servers, sentinels = read_sentinel_url(url)
    query = partial(query_once, sentinel_servers, "sentinel", seconds=_QUERY_TIMEOUT)

    def find() -> Address:
        return run(sentinels.master(query))

    return ServerTransport(servers, timeout, find, server_kind="master", on_lost=sentinels.query_another_first)


def async_master_transport(url: str) -> Callable[[], Channel]:
    """Return a function that makes the transport to the master for an event loop. Raises `ConfigError`."""
    servers, sentinel_servers, sentinels = read_sentinel_url(url, async_connection_factory)

    async def query(routed_command: RoutedCommand) -> Any:
        sentinel = sentinel_servers.at(routed_command.address)
        raw_connection = sentinel.raw_connection()
        try:
            async with timeout_without_stalls(_QUERY_TIMEOUT):
                await raw_connection.connect()
                await raw_connection.send_command(*routed_command.command)
                return await raw_connection.read_response()
        except CALL_ERRORS as error:
            raise await aconnection_error(sentinel, error, "sentinel") from error
        finally:
            drop(raw_connection)

    def find() -> Awaitable[Address]:
        return sentinels.master(query)

    return lambda: Channel(servers, find, server_kind="master", on_lost=sentinels.query_another_first)


def _field_values(flat: list[bytes], field: bytes) -> list[bytes]:
    """Return the values of a field in a flat list of names and values."""
    return [value for name, value in zip(flat[::2], flat[1::2], strict=False) if name == field]


def read_sentinel_url(url: str, read: Callable[[str], ConnectionFactory] = _read_for_threads) -> _SentinelUrl:
    """Read a URL. `read`: reads the URL of one server. Raises `ConfigError`."""
    scheme, _, rest = url.partition("+sentinel://")
    authority, _, path = rest.partition("/")
    path, _, query = path.partition("?")
    service, _, database = path.partition("/")
    login, at, hosts = authority.rpartition("@")
    if not service:
        raise ConfigError(f"store: the URL names no service, expected {_FORM}", code="RL-038")
    reject_timeouts(url)
    options = dict(parse_qsl(query, keep_blank_values=True))
    credentials = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    tail = f"/{database}?{urlencode(options)}"
    try:
        factories = [read(f"{scheme}://{login}{at}{host}{tail}") for host in hosts.split(",")]
    except ConfigError:
        factories = []
    if not factories or not all(one.options.get("host") for one in factories):
        raise ConfigError(f"store: the URL cannot be read, expected {_FORM}", code="RL-038") from None
    connection_class = factories[0].connection_class
    servers = factories[0].options
    addresses = [(one.options["host"], one.options.get("port", _PORT)) for one in factories]
    sentinel_servers = ConnectionFactory(connection_class, servers | credentials | {"db": 0})
    return _SentinelUrl(
        ConnectionFactory(connection_class, servers), sentinel_servers, Sentinels(unquote(service), addresses)
    )
