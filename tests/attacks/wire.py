"""Requests as an attacker writes them: raw bytes on a socket, from any of 127.0.0.0/8, all of which Linux has."""

import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

_WITHIN = 20.0  # seconds for one answer, on a busy machine

Line = tuple[str, str]


class Reply(NamedTuple):
    """What came back: 0 as status when the server closed the connection without a word."""

    status: int
    head: bytes
    body: bytes


class Request(NamedTuple):
    """One request. `lines`: header lines in order; a Host of one's own goes instead of the usual one."""

    method: str
    target: str
    lines: Sequence[Line] = ()
    source: str = "127.0.0.1"

    def written(self) -> bytes:
        """The bytes, every character as latin-1."""
        usual = [] if any(name.lower() == "host" for name, _ in self.lines) else [("Host", "shop.example")]
        rest = [("Content-Length", "0"), ("Connection", "close")]
        head = "".join(f"{name}: {value}\r\n" for name, value in [*usual, *self.lines, *rest])
        return f"{self.method} {self.target} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


def send(port: int, request: Request) -> Reply:
    """Send it on a connection of its own."""
    with _connected(port, request.source) as connection:
        with suppress(OSError):  # a server may answer, and close, before it has read all of it
            connection.sendall(request.written())
        return _read(connection)


def send_at_once(port: int, requests: Iterable[Request]) -> list[Reply]:
    """All of them in one moment: everything is there but the last bytes, and then these come."""
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
