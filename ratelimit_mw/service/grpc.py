"""Envoy's rate limit service by gRPC: `envoy.service.ratelimit.v3.RateLimitService`.

Each descriptor describes a request. All of them are decided in one step, all or nothing.
"""

import os
from collections.abc import Iterable, Sequence
from math import isinf
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ratelimit_mw.core.errors import ConfigError, require
from ratelimit_mw.core.limit import MAX_EXACT_INT, Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.response import HeaderList
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.http.views import AsgiRequest
from ratelimit_mw.service.access import socket_mode
from ratelimit_mw.service.answers import Rejected
from ratelimit_mw.service.app import Service
from ratelimit_mw.service.forwarded import MAX_TARGET, too_long
from ratelimit_mw.service.requests import Requests, request_of
from ratelimit_mw.stores.group import stored_bucket

with require("grpc", install="grpcio"):
    import grpc
    from grpc import aio

with require("google", install="protobuf"):
    from google.protobuf.message import DecodeError

    from ratelimit_mw.service.grpc_messages import MESSAGES, OK, OVER_LIMIT, SERVICE, UNITS

_MAX_UINT32: Final = 2**32 - 1
_MAX_DESCRIPTORS: Final = 64
_MAX_MESSAGE: Final = 8_388_608  # bytes of a call. Envoy admits a call that fails, and its headers have up to 60 KB
_PARTS: Final = (b"remote_address", b"path", b"method", b"user")
_DROPPED: Final = ("content-length",)  # Envoy computes it
_UNIX: Final = "unix:"
_STOP_GRACE: Final = 1.0  # seconds for calls in progress when the server stops


class RateLimitService:
    """Answers `ShouldRateLimit`."""

    def __init__(self, service: Service) -> None:
        self._service: Final = service  # a reload replaces its parts

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the gRPC service."""
        method = grpc.unary_unary_rpc_method_handler(
            self.should_rate_limit,
            request_deserializer=_read,
            response_serializer=MESSAGES["RateLimitResponse"].SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})

    async def should_rate_limit(self, call: Any, context: Any) -> Any:
        """Decide the descriptors of a call."""
        peer = _address(context.peer())
        access, decider = self._service.access, self._service.requests
        problem = access.problem_of_metadata(peer, context.invocation_metadata() or ())
        problem = problem or access.distrust(peer)
        if problem is not None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
        if call is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "body: got no RateLimitRequest")
        if not 0 < len(call.descriptors) <= _MAX_DESCRIPTORS:
            text = f"descriptors: got {len(call.descriptors)}, expected 1 to {_MAX_DESCRIPTORS}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        requests = []
        for index, descriptor in enumerate(call.descriptors):
            if not descriptor.entries:
                text = f"descriptors[{index}].entries: got none, expected at least one"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else call.hits_addend or None
            if cost is not None and cost >= MAX_EXACT_INT:
                text = f"descriptors[{index}].hits_addend: got {cost}, expected less than {MAX_EXACT_INT}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            try:
                requests.append((_request(descriptor.entries), cost))
            except Rejected as error:
                return _rejected(error, len(call.descriptors))
        verdict, buckets = await decider.decide(requests, zero_looks=True)
        return await self._response(decider, requests[0][0], verdict, buckets)

    async def _response(
        self, decider: Requests, request: AsgiRequest, verdict: Verdict | None, buckets: Sequence[Sequence[Any]]
    ) -> Any:
        response = MESSAGES["RateLimitResponse"](overall_code=OK)
        if verdict is None:
            response.statuses.extend(MESSAGES["DescriptorStatus"](code=OK) for _ in buckets)
            return response
        _, fields, response.raw_body = await decider.response(request, verdict)
        response.overall_code = OK if verdict.allowed else OVER_LIMIT
        _add_fields(response, fields)
        for own in buckets:
            response.statuses.append(_status(_part_of(verdict, own), refused=not verdict.allowed))
        return response


def _read(body: bytes) -> Any:
    """Return the call; None for invalid bytes. An exception here would be logged for each such call."""
    try:
        return MESSAGES["RateLimitRequest"].FromString(body)
    except DecodeError:
        return None


def _rejected(error: Rejected, count: int) -> Any:
    """Return a refusal, for a request that cannot be decided. With a gRPC error, Envoy would admit the request."""
    _, fields, body = error.response
    response = MESSAGES["RateLimitResponse"](overall_code=OVER_LIMIT, raw_body=body)
    _add_fields(response, fields)
    response.statuses.extend(MESSAGES["DescriptorStatus"](code=OVER_LIMIT) for _ in range(count))
    return response


def _add_fields(response: Any, fields: HeaderList) -> None:
    for name, value in fields:
        if name.lower() not in _DROPPED:
            response.response_headers_to_add.add(key=name.lower(), value=value)


def _part_of(verdict: Verdict, buckets: Sequence[Any]) -> Verdict:
    """Return the verdict on the charges of one descriptor."""
    wanted = set(buckets)
    indices = [index for index in range(len(verdict.decisions)) if stored_bucket(verdict.charges[index]) in wanted]
    refusing = [index for index in indices if index in verdict.refusing]
    charges = [verdict.charges[index] for index in indices]
    decisions = [verdict.decisions[index] for index in indices]
    return Verdict(not refusing, charges, decisions, verdict.rule, verdict.source)


def _status(verdict: Verdict, *, refused: bool) -> Any:
    """Return the status of one descriptor. Without decisions, e.g. after a store error, it is the overall status."""
    over = refused if not verdict.decisions else not verdict.allowed
    status = MESSAGES["DescriptorStatus"](code=OVER_LIMIT if over else OK)
    index = verdict.binding
    if index is None:
        return status
    limit, decision = verdict.charges[index].limit, verdict.decisions[index]
    status.current_limit.requests_per_unit = min(limit.quota, _MAX_UINT32)
    status.current_limit.unit = UNITS.get(int(limit.window), 0) if limit.window == int(limit.window) else 0
    status.limit_remaining = min(decision.remaining, _MAX_UINT32)
    seconds = _until_reset(decision)
    status.duration_until_reset.seconds = int(seconds)
    status.duration_until_reset.nanos = int(seconds % 1 * 1e9)
    return status


def _until_reset(decision: Decision) -> float:
    """Return the seconds until the client can continue: until more is left, or until the same request would pass."""
    seconds = decision.next_after if decision.allowed else decision.retry_after
    return 0.0 if isinf(seconds) else seconds


def _request(entries: Iterable[Any]) -> AsgiRequest:
    """Return the request that a descriptor describes.

    The entries `remote_address`, `path`, `method` and `user` are parts of the request. All others are headers. In their
    names `_` becomes `-`, because header names have no underscores: the entry `generic_key` is the header
    `generic-key`. Raises `Rejected` for a long path.
    """
    parts: dict[bytes, bytes] = {}
    fields: list[tuple[bytes, bytes]] = []
    for entry in entries:
        if entry.key in _PARTS:
            parts.setdefault(entry.key, entry.value)
        else:
            fields.append((entry.key.lower().replace(b"_", b"-"), entry.value))
    address = parts.get(b"remote_address", b"").decode("latin-1")
    client = (address, 0) if parse_address(address) is not None else None
    target = parts.get(b"path") or b"/"
    if len(target) > MAX_TARGET:
        raise too_long()
    method = (parts.get(b"method") or b"GET").decode("latin-1")
    # different bytes must remain different users
    user = parts[b"user"].decode("utf-8", "surrogateescape") if b"user" in parts else None
    return request_of(scope_from_parts(method, target, fields, client, user))


def _address(peer: str) -> str | None:
    """Return the address in gRPC's name for a peer, such as `ipv4:127.0.0.1:80`; None for a unix socket."""
    kind, _, rest = unquote(peer).partition(":")
    return None if kind == "unix" else rest.rpartition(":")[0].strip("[]") or rest


def _own(address: str) -> str:
    """Return the address that this process binds: another path than that of other processes, for a unix socket.

    At its end, gRPC deletes this path, and not the one in `address`, which the next process may have by then.
    """
    if not address.startswith(_UNIX):
        return address
    path = Path(address.removeprefix(_UNIX))
    if path.exists() and not path.is_socket():
        raise ConfigError(f"--grpc {address}: exists and is not a socket", code="RL-053")
    return f"{address}.{os.getpid()}"


def _put_in_place(address: str) -> None:
    """Move the unix socket of this process to the path in `address`, where it replaces that of another process."""
    if address.startswith(_UNIX):
        Path(_own(address).removeprefix(_UNIX)).replace(address.removeprefix(_UNIX))


class GrpcServer:
    """The gRPC server of one process, on the addresses of `--grpc`. All processes share a port.

    `mode`: the permissions of its unix sockets.
    """

    def __init__(self, service: Service, addresses: Sequence[str], mode: int = 0o660) -> None:
        self._service: Final = service
        self._addresses: Final = addresses
        self._mode: Final = mode
        self._server: Any = None

    async def start(self) -> None:
        """Start to serve, in the running loop. Raises `ConfigError` if an address is not available."""
        service = self._service
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.so_reuseport", 1)]
        self._server = aio.server(options=options)
        limits = RateLimitService(service)
        self._server.add_generic_rpc_handlers((limits.handler(),))
        for address in self._addresses:
            own = _own(address)
            try:
                with socket_mode(self._mode):
                    bound = self._server.add_insecure_port(own)
            except RuntimeError as error:
                raise ConfigError(f"--grpc {address}: {error}", code="RL-053") from None
            if not bound:
                raise ConfigError(f"--grpc {address}: the address is not available", code="RL-053")
        await self._server.start()
        for address in self._addresses:
            _put_in_place(address)

    async def stop(self) -> None:
        """End the calls in progress, within a second."""
        if self._server is not None:
            await self._server.stop(_STOP_GRACE)
