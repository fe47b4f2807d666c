"""A TCP proxy that imitates faults of networks: it delays, drips, drops, resets and swallows data."""

import socket
import struct
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Literal, Self

Mode = Literal["passes", "is late", "holds", "drips", "drops", "resets", "swallows"]
_AT_MOST = 20.0  # seconds to hold a reply; then a client that waits for the reply fails instead of hanging
_DRIP = 0.02  # seconds between two bytes
_RESET = struct.pack("ii", 1, 0)  # close() discards unsent data and sends RST


class FaultyProxy(AbstractContextManager["FaultyProxy", None]):
    """A proxy for a local port, with its own threads. `mode`: its present behavior, also for open connections.

    `is late`: replies are delayed by `late` seconds. `holds`: replies are kept until the mode changes. `drips`: replies
    are sent byte by byte. `drops`: commands are passed on, but the connection is closed instead of sending the reply.
    `resets`: the connection is reset when a command arrives. `swallows`: commands are discarded, and no reply is sent.
    `accepted`: number of connections so far.
    """

    def __init__(self, port: int, late: float = 0.0) -> None:
        self._target, self._late = ("127.0.0.1", port), late
        self._mode: Mode = "passes"
        self._passes = threading.Event()
        self._passes.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0  # connections so far
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of database 0 of the server behind the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def mode(self) -> Mode:
        """The present behavior."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "holds":
            self._passes.clear()
        else:
            self._passes.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mode = "passes"
        for one in self._sockets:
            _end(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.accepted += 1
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self.heard()
                if self._mode == "resets":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    client.close()
                    break
                if self._mode != "swallows":
                    server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def heard(self) -> None:
        """Called when the client has sent data."""

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and self._mode != "drops":
                if self._mode == "is late":
                    time.sleep(self._late)
                self._passes.wait(_AT_MOST)
                while data and self._mode == "drips":
                    client.sendall(data[:1])
                    data = data[1:]
                    time.sleep(_DRIP)
                client.sendall(data)
        _end(client)
        _end(server)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
