"""Converts errors of the client library to the errors of a store."""

import asyncio
from socket import gaierror
from typing import Final

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
from ratelimit_mw.stores.redis.protocol import NoCodec, NoScript, Redirected
from ratelimit_mw.stores.redis.rejections import (
    ServerKind,
    as_store_error,
    log_and_label,
    missing_tls_file_error,
    not_redis_error,
    tls_mismatch_error,
)
from ratelimit_mw.stores.redis.url import ConnectionFactory

CALL_ERRORS: Final = (RedisError, RedisClusterException, OSError)  # what redis-py or a socket raises if a call fails
_REDIRECTIONS: Final[dict[str, type[AskError]]] = {"ASK": AskError, "MOVED": MovedError}


def classify_error(error: Exception, server_kind: ServerKind = "cluster") -> Exception:
    """Convert an error of the client library to a `RetryableReply` or a `StoreError`."""
    if isinstance(error, NoScriptError):
        return NoScript()
    if server_kind == "cluster" and isinstance(to := _redirection(error), AskError):
        return Redirected((to.host, to.port), asking=not isinstance(to, MovedError))
    if isinstance(error, ResponseError) and ("cmsgpack" in str(error) or "struct" in str(error)):
        return NoCodec()
    return as_store_error(error, server_kind)


def classify_and_log(label: str, error: Exception, server_kind: ServerKind) -> Exception:
    """Convert an error as `classify_error` does, and log it if it is a rejection."""
    problem = classify_error(error, server_kind)
    return log_and_label(label, server_kind, problem) if isinstance(problem, StoreError) else problem


def _redirection(error: Exception) -> Exception:
    """Return a MOVED or ASK error as its own type. Before redis-py 6.0, only its cluster clients do so."""
    code, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return error


def is_replica(error: Exception) -> bool:
    """Return whether the server is a read-only replica. If so, the master may now have another address.

    Before Redis 7, an error of a script has READONLY only somewhere in its text.
    """
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Return why a connection could not be opened. Logs a rejection. May block for a second."""
    problem = _connection_error(factory, error, server_kind)
    if _may_be_tls_mismatch(factory, error, problem):
        problem = _tls_mismatch_error(factory, problem)
    return log_and_label(factory.label, server_kind, problem, named=True)


async def aconnection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Do the same as `connection_error`, without blocking the event loop."""
    problem = _connection_error(factory, error, server_kind)
    if _may_be_tls_mismatch(factory, error, problem):
        problem = await asyncio.to_thread(_tls_mismatch_error, factory, problem)
    return log_and_label(factory.label, server_kind, problem, named=True)


def _connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    problem = as_store_error(error, server_kind)
    if isinstance(error, InvalidResponse):
        return not_redis_error(problem)
    if factory.tls and any(isinstance(one, FileNotFoundError) for one in (error, error.__cause__, error.__context__)):
        return missing_tls_file_error(problem)
    return problem


def _may_be_tls_mismatch(factory: ConnectionFactory, error: Exception, problem: StoreError) -> bool:
    """Return whether the cause may be that only one of server and client uses TLS."""
    causes = (error, error.__cause__, error.__context__)
    if problem.rejected or factory.address is None or isinstance(error, ResponseError):
        return False
    return not any(isinstance(one, (ConnectionRefusedError, gaierror)) for one in causes)


def _tls_mismatch_error(factory: ConnectionFactory, problem: StoreError) -> StoreError:
    return problem if factory.address is None else tls_mismatch_error(factory.address, problem, tls=factory.tls)


def no_connection_error(error: Exception) -> StoreError:
    """Return the error for requests that wait for a connection."""
    text = str(error) or type(error).__name__  # a timeout has no text
    return StoreError(f"cannot connect: {text}", rejected=getattr(error, "rejected", False))
