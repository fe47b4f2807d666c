"""Converts errors of the client library and of the network to those of a store, and explains rejections.

An outage ends without a change. A rejection lasts until a setting changes, here or on the server: a password, a right,
the database or the protocol. Both are a `StoreError`; `StoreError.rejected` distinguishes them.
"""

import asyncio
import re
import socket
import ssl
import time
from typing import Final, Literal

from redis import RedisError
from redis.exceptions import (
    AskError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores.redis.protocol import Address, NoCodec, NoScript, Redirected
from ratelimit_mw.stores.redis.url import ConnectionFactory

ServerKind = Literal["server", "cluster", "master", "sentinel"]
"""The kind of server that the URL implies: a single server, a cluster node, the master of a service, a Sentinel."""

_RIGHTS: Final = "as listed on the page on Redis of the documentation, under 'The least rights'"
_ALL_KINDS: Final = frozenset({"server", "cluster", "master", "sentinel"})
_SERVERS: Final = _ALL_KINDS - {"sentinel"}
_SENTINELS: Final = frozenset({"sentinel"})
_LOGIN: Final = "the store's URL: redis://USER:PASSWORD@HOST:PORT"
_NO_USER: Final = ", or redis://:PASSWORD@HOST:PORT without a user"
_ONLY_USER: Final = "; text before @ without a colon is a user's name"
_LOGIN_OF_SENTINELS: Final = "sentinel_username and sentinel_password in the store's URL"
_NO_TLS: Final = "the server does not speak TLS on this port; name its TLS port, or begin the store's URL with redis"
_LOGIN_REJECTED: Final = r"WRONGPASS|invalid (username-)?password|Invalid Username or Password"
_LOGIN_REQUIRED: Final = (
    r"NOAUTH|Authentication required|unauthenticated|HELLO must be called with the client already auth"
)
_CLUSTER_ERROR: Final = (
    r"SELECT is not allowed in cluster mode|^(MovedError|AskError)|\b(MOVED|ASK) \d|CROSSSLOT|the same slot"
)

# A pattern for an error's text, the kinds of server to which it applies, an explanation with a fix. The first match
# counts.
_EXPLANATIONS: Final[tuple[tuple[str, frozenset[str], str], ...]] = (
    (_LOGIN_REJECTED, _SERVERS, f"wrong user or password; write the right ones into {_LOGIN}{_ONLY_USER}"),
    (_LOGIN_REJECTED, _SENTINELS, f"wrong user or password for the Sentinel; set {_LOGIN_OF_SENTINELS}"),
    (
        r"without any password configured|no password is set",
        _SERVERS,
        "the store's URL has a password, and the server has none; remove it from the URL, or set one on the server",
    ),
    (
        r"without any password configured|no password is set",
        _SENTINELS,
        "the store's URL has a sentinel_password, and the Sentinel has none; remove it, or set one on the Sentinel",
    ),
    (_LOGIN_REQUIRED, _SERVERS, f"the server requires a password; write user and password into {_LOGIN}{_NO_USER}"),
    (_LOGIN_REQUIRED, _SENTINELS, f"the Sentinel requires a password; set {_LOGIN_OF_SENTINELS}"),
    (
        r"(permissions? to|can't) access",
        _ALL_KINDS,
        f"the user may not use keys with the prefix of this store; grant them with ACL SETUSER, {_RIGHTS}",
    ),
    (
        r"NOPERM|no permissions?|can't run this command",
        _ALL_KINDS,
        f"the user lacks a right; grant it with ACL SETUSER, {_RIGHTS}",
    ),
    (
        r"DB index is out of range|invalid DB index",
        _ALL_KINDS,
        "the server has no database of this number; write another one into the store's URL, or raise `databases` there",
    ),
    (
        _CLUSTER_ERROR,
        frozenset({"server"}),
        "the server is a node of a cluster; begin the store's URL with redis+cluster://, or rediss+cluster:// for TLS",
    ),
    (
        r"cluster support disabled",
        _ALL_KINDS,
        "the server is not a node of a cluster; begin the store's URL with redis://, or rediss:// for TLS",
    ),
    (
        r"READONLY|read only replica",
        frozenset({"server"}),
        "the server is a replica, which may not write; name the master in the store's URL, or use redis+sentinel://",
    ),
    (
        r"unknown command .?SENTINEL",
        _ALL_KINDS,
        "the server is not a Sentinel; name the Sentinels in the store's URL, or begin it with redis://",
    ),
    (
        r"unknown command .?(AUTH|EVAL|EVALSHA|SCRIPT|SELECT|CLUSTER)\b",
        _ALL_KINDS,
        "the server lacks a command of Redis 6.2; if it is a Sentinel, the store's URL begins with redis+sentinel://",
    ),
    (
        r"protected mode",
        _ALL_KINDS,
        "the server is in protected mode and admits only its own host; set a password on the server",
    ),
    (
        r"certificate verify failed",
        _ALL_KINDS,
        "the server's certificate is not trusted; the URL must name its host, and its authority as ?ssl_ca_certs=FILE",
    ),
    (
        r"(?i)certificate[ _]required|did not return a certificate|alert (bad certificate|unknown ca)",
        _ALL_KINDS,
        "the server requires a certificate from its clients; name one in the store's URL, ssl_certfile and ssl_keyfile",
    ),
    (
        r"(?i)wrong[ _]version[ _]number|record layer failure|http request|unknown protocol",
        _ALL_KINDS,
        _NO_TLS,
    ),
    (
        r"(?i)alert (protocol version|handshake failure)|no shared cipher|unsupported protocol",
        _ALL_KINDS,
        "the server and this client have no version or cipher of TLS in common; configure one on both",
    ),
)
CALL_ERRORS: Final = (RedisError, RedisClusterException, OSError)  # what redis-py or a socket raises if a call fails
_REDIRECTIONS: Final[dict[str, type[AskError]]] = {"ASK": AskError, "MOVED": MovedError}
_ARGUMENTS: Final = re.compile(r",? with args beginning with.*", re.DOTALL)  # one may be a password
_MISSING_CODEC: Final = re.compile(r"\b(cmsgpack|struct)\b")  # the name of a global in an error of Lua
_MAX_TEXT: Final = 300  # characters of a server's error
_NOT_REDIS: Final = "the server on this port does not speak the protocol of Redis; name another host or port"
_TLS: Final = "the server speaks TLS on this port; begin the store's URL with rediss"
_HANDSHAKE: Final = 0x16  # first byte of a TLS record, by its type
_ALERT: Final = 0x15
_REPLY_TIMEOUT: Final = 0.3  # seconds to wait for bytes that reveal the protocol
_RECHECK_INTERVAL: Final = 60.0  # seconds between two protocol checks of one server
_tls_checks: Final[dict[Address, tuple[float, bool | None]]] = {}  # expiry, monotonic; is TLS


def classify_error(error: Exception, server_kind: ServerKind = "cluster") -> Exception:
    """Convert an error of the client library to a `RetryableReply` or a `StoreError`."""
    if isinstance(error, NoScriptError):
        return NoScript()
    if server_kind == "cluster" and isinstance(to := _redirection(error), AskError):
        return Redirected((to.host, to.port), asking=not isinstance(to, MovedError))
    if isinstance(error, ResponseError) and _MISSING_CODEC.search(str(error)):
        return NoCodec()
    return as_store_error(error, server_kind)


def classify_and_log(label: str, error: Exception, server_kind: ServerKind) -> Exception:
    """Convert an error as `classify_error` does, and log it if it is a rejection."""
    problem = classify_error(error, server_kind)
    return _log_and_label(label, server_kind, problem) if isinstance(problem, StoreError) else problem


def _redirection(error: Exception) -> Exception:
    """Convert a MOVED or ASK reply to `MovedError` or `AskError`; return any other error unchanged.

    Before redis-py 6.0, only the cluster clients of redis-py raise these types.
    """
    code, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return error


def is_replica_error(error: Exception) -> bool:
    """Return whether the server is a read-only replica. If so, the master may now have another address.

    Before Redis 7, an error of a script has READONLY only somewhere in its text.
    """
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def as_store_error(error: BaseException, server_kind: ServerKind = "server") -> StoreError:
    """Return the `StoreError` for an error of the client library or of the network.

    Removes the arguments of a command from the text of `error` and of the error that is returned, as one may be a
    password.
    """
    if isinstance(error, StoreError):
        return error
    text = str(error)
    if (safe_text := _ARGUMENTS.sub("", text)) != text:
        error.args, text = (safe_text,), safe_text
    shown = f"{type(error).__name__}: {text[:_MAX_TEXT]}" if text else type(error).__name__
    for pattern, server_kinds, explanation in _EXPLANATIONS:
        if server_kind in server_kinds and re.search(pattern, shown):
            return StoreError(f"{explanation} ({shown})", rejected=True)
    if any(isinstance(one, PermissionError) for one in _causes(error)):
        return StoreError(
            f"this process may not open the server's socket; give its user the right to write to it ({shown})",
            rejected=True,
        )
    return StoreError(shown)


def _log_and_label(
    label: str, server_kind: ServerKind, problem: StoreError, *, always_label: bool = False
) -> StoreError:
    """Log a rejection, throttled. Return the error, with the label of the server in its text where needed.

    A rejection by a cluster node gets the label. `always_label`: add the label to any other error, too, unless a
    Sentinel sent it.
    """
    if problem.rejected:
        warn_throttled(f"store {label} rejects this app", "%s", problem, code="RL-204")
    if server_kind == "cluster" and problem.rejected:
        return StoreError(f"node {label}: {problem}", rejected=True)
    if always_label and server_kind != "sentinel" and label not in str(problem):
        return StoreError(f"{label}: {problem}", rejected=problem.rejected)
    return problem


def connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Return why a connection could not be opened. Logs a rejection. May block for a second."""
    problem = _explained_connection_error(factory, error, server_kind)
    if (address := _address_to_check_for_tls(factory, error, problem)) is not None:
        problem = _tls_mismatch_error(address, problem, tls=factory.tls)
    return _log_and_label(factory.label, server_kind, problem, always_label=True)


async def aconnection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Do the same as `connection_error`, without blocking the event loop."""
    problem = _explained_connection_error(factory, error, server_kind)
    if (address := _address_to_check_for_tls(factory, error, problem)) is not None:
        problem = await asyncio.to_thread(_tls_mismatch_error, address, problem, tls=factory.tls)
    return _log_and_label(factory.label, server_kind, problem, always_label=True)


def _explained_connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    problem = as_store_error(error, server_kind)
    if isinstance(error, InvalidResponse) and not problem.rejected:
        return StoreError(f"{_NOT_REDIS} ({problem})", rejected=True)
    if factory.tls and any(isinstance(one, FileNotFoundError) for one in _causes(error)):
        return StoreError(f"a file in an ssl_ option of the store's URL does not exist ({problem})", rejected=True)
    return problem


def _causes(error: BaseException) -> tuple[BaseException | None, ...]:
    """Return an error and the errors from which it was raised."""
    return error, error.__cause__, error.__context__


def _address_to_check_for_tls(factory: ConnectionFactory, error: Exception, problem: StoreError) -> Address | None:
    """Return the address of the server if the cause may be that only one of server and client uses TLS, else None."""
    if problem.rejected or isinstance(error, ResponseError):
        return None
    if any(isinstance(one, (ConnectionRefusedError, socket.gaierror)) for one in _causes(error)):
        return None
    return factory.address


def _tls_mismatch_error(address: Address, problem: StoreError, *, tls: bool) -> StoreError:
    """Return a rejection if only one of server and client uses TLS, else the error itself.

    For connections that ended or timed out without a reason. Blocks for a second at most, and checks each server once
    a minute.
    """
    now = time.monotonic()
    recheck_at, speaks_tls = _tls_checks.get(address, (0.0, None))
    if now >= recheck_at:
        try:
            speaks_tls = _speaks_tls(address)
        except OSError:
            speaks_tls = None
        _tls_checks[address] = now + _RECHECK_INTERVAL, speaks_tls
    if speaks_tls is None or speaks_tls is tls:
        return problem
    return StoreError(f"{_NO_TLS if tls else _TLS} ({problem})", rejected=True)


def _speaks_tls(address: Address) -> bool | None:
    """Return whether the server speaks TLS; None if its reply does not reveal that. Raises `OSError`."""
    with socket.create_connection(address, _REPLY_TIMEOUT) as plain:
        try:
            plain.sendall(b"PING\r\n")
            answer = plain.recv(64)
        except TimeoutError:
            return None
        except OSError:
            answer = b""
    if answer:
        return answer[0] in (_ALERT, _HANDSHAKE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the connection carries no data
    with socket.create_connection(address, _REPLY_TIMEOUT) as plain:
        try:
            with context.wrap_socket(plain):
                return True
        except ssl.SSLError as error:
            return True if "ALERT" in str(error).upper() else None


def error_for_waiting_requests(error: Exception) -> StoreError:
    """Return the error for requests that wait for a connection."""
    text = str(error) or type(error).__name__  # a timeout has no text
    return StoreError(f"cannot connect: {text}", rejected=getattr(error, "rejected", False))
