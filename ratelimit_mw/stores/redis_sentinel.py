"""The way to the master of a service that Redis Sentinel watches over, on connections of our own.

The Sentinels are asked where the master is, off the requests: when a connection is opened, when one is lost or its
server may not write any more, and twice a second, because a master that was replaced on purpose goes on for a while.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.notation import nearest
from ratelimit_mw.stores.redis_server import (
    FAILURES,
    AsyncConnections,
    Connections,
    Source,
    async_source,
    source,
)
from ratelimit_mw.stores.talk import Steps, adrive, drive
from ratelimit_mw.stores.topology import Address, Errand
from ratelimit_mw.stores.wire import drop

_PORT: Final = 26379  # where a Sentinel listens unless the URL says otherwise
_PATIENCE: Final = 0.5  # seconds: who asks a server that is lost must be done with it when there is a new one
_FORM: Final = (
    "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB?OPTION=VALUE with the options of redis-py, "
    "sentinel_username and sentinel_password; in a password / # ? @ are written %2F %23 %3F %40"
)


class Sentinels:
    """Where to ask for the master of a service. Does no I/O."""

    def __init__(self, service: str, addresses: list[Address]) -> None:
        self._service = service
        self._known = addresses  # the one that knew last comes first

    def master(self) -> Steps[Address]:
        """Ask one after the other until one knows. Yields errands, and is sent their replies. Raises `StoreError`."""
        reasons: list[str] = []
        for asked in self._known:
            try:
                reply = yield Errand(asked, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
                if not reply:
                    self._unknown((yield Errand(asked, ("SENTINEL", "MASTERS"))))
            except StoreError as error:
                reasons.append(f"Sentinel {asked[0]}:{asked[1]}: {error}")
                continue
            self._known = sorted(self._known, key=asked.__ne__)
            return reply[0].decode(), int(reply[1])
        raise StoreError("; ".join(reasons))

    def _unknown(self, masters: list[Any]) -> None:
        names = sorted(name.decode() for master in masters for name in _named(master, b"name"))
        there = ", ".join(map(repr, names)) or "none"
        raise StoreError(f"no service {self._service!r}{nearest(self._service, names)}; there are {there}")


class _Parts(NamedTuple):
    """What a URL says."""

    servers: Source  # of the service; where they are the Sentinels know
    asked: Source  # the same of the Sentinels
    sentinels: Sentinels


def master(url: str, timeout: float) -> Connections:
    """For threads. Raises `ConfigError`."""
    servers, asked, sentinels = _read(url, source)

    def ask(errand: Errand) -> Any:
        connection = asked.at(errand.address).connection()
        try:
            connection.connect()
            connection.send_command(*errand.command)
            return connection.read_response()
        except FAILURES as error:
            raise _no_answer(error) from error
        finally:
            connection.disconnect()

    return Connections(servers, timeout, lambda: drive(sentinels.master(), ask))


def async_master(url: str) -> AsyncConnections:
    """For asyncio. Raises `ConfigError`."""
    servers, asked, sentinels = _read(url, async_source)

    async def ask(errand: Errand) -> Any:
        connection = asked.at(errand.address).connection()
        try:
            async with asyncio.timeout(_PATIENCE):
                await connection.connect()
                await connection.send_command(*errand.command)
                return await connection.read_response()
        except FAILURES as error:
            raise _no_answer(error) from error
        finally:
            await drop(connection)

    return AsyncConnections(servers, lambda: adrive(sentinels.master(), ask))


def _no_answer(error: Exception) -> StoreError:
    return StoreError(f"{type(error).__name__}: {error}")


def _named(flat: list[bytes], field: bytes) -> list[bytes]:
    """The value of a field in a list of names and values."""
    return [value for name, value in zip(flat[::2], flat[1::2], strict=False) if name == field]


def _read(url: str, read: Callable[[str, float], Source]) -> _Parts:
    scheme, _, rest = url.partition("+sentinel://")
    place, _, path = rest.partition("/")
    path, _, query = path.partition("?")
    service, _, database = path.partition("/")
    login, at, hosts = place.rpartition("@")
    if not service:
        raise ConfigError(f"store: the URL names no service, allowed is {_FORM}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    own = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    tail = f"/{database}?{urlencode(options)}"
    try:
        found = [read(f"{scheme}://{login}{at}{host}{tail}", _PATIENCE) for host in hosts.split(",")]
    except ConfigError:
        found = []
    if not found or not all(one.options.get("host") for one in found):
        raise ConfigError(f"store: the URL cannot be read, allowed is {_FORM}") from None
    kind, servers = found[0].kind, found[0].options | {"socket_connect_timeout": _PATIENCE}
    addresses = [(one.options["host"], one.options.get("port", _PORT)) for one in found]
    asked = Source(kind, servers | own | {"db": 0})
    return _Parts(Source(kind, servers), asked, Sentinels(unquote(service), addresses))
