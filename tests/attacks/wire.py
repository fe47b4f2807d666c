"""Sends raw requests on a socket, as an attacker writes them, from any address of 127.0.0.0/8.

Linux accepts all of these as local addresses.
"""

import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

_WITHIN = 20.0  # seconds for one response, on a busy machine

Line = tuple[str, str]


class Reply(NamedTuple):
    """A response. Its status is 0 if the server closed the connection without a response."""

    status: int
    head: bytes
    body: bytes


class Request(NamedTuple):
    """A request. `lines`: header lines in order; a Host among them replaces the default one."""

    method: str
    target: str
    lines: Sequence[Line] = ()
    source: str = "127.0.0.1"

    def written(self) -> bytes:
        """Return the bytes of the request, encoded as latin-1."""
        usual = [] if any(name.lower() == "host" for name, _ in self.lines) else [("Host", "shop.example")]
        rest = [("Content-Length", "0"), ("Connection", "close")]
        head = "".join(f"{name}: {value}\r\n" for name, value in [*usual, *self.lines, *rest])
        return f"{self.method} {self.target} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


def send(port: int, request: Request) -> Reply:
    """Send the request on a new connection."""
    with _connected(port, request.source) as connection:
        with suppress(OSError):  # a server may respond, and close the connection, before it has read the whole request
            connection.sendall(request.written())
        return _read(connection)


def send_at_once(port: int, requests: Iterable[Request]) -> list[Reply]:
    """Send all requests at the same moment: first everything but the last byte of each, then the last bytes."""
    with ExitStack() as open_ones:
        connections = []
        for request in requests:
            connection = open_ones.enter_context(_connected(port, request.source))
            connection.sendall(request.written()[:-1])
            connections.append(connection)
        for connection in connections:
            connection.sendall(b"\n")
        return [_read(connection) for connection in connections]


def _connected(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), _WITHIN, source_address=(source, 0))


def _read(connection: socket.socket) -> Reply:
    received = bytearray()
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    return Reply(int(head[9:12] or 0), head, body)
