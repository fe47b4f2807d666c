"""A TCP proxy that does to whole connections what networks do: it is late, drips, resets, and swallows."""

import socket
import struct
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Literal, Self

Mode = Literal["passes", "is late", "holds", "drips", "drops", "resets", "swallows"]
_AT_MOST = 20.0  # seconds that anything is kept, so that whoever waits for it in vain fails instead of hanging
_DRIP = 0.02  # seconds from byte to byte
_RESET = struct.pack("ii", 1, 0)  # closing forgets what is not sent, and says RST


class FaultyProxy(AbstractContextManager["FaultyProxy", None]):
    """In front of one port of this machine, in threads of its own. `mode`: what it does now, to old connections too.

    `is late`: answers come `late` seconds later. `holds`: they are kept, until the mode is another one. `drips`: they
    come byte by byte. `drops`: what is asked is done, and instead of its answer the connection ends. `resets`: the
    connection is reset when something is asked. `swallows`: what is asked goes nowhere, and nothing is answered.
    `accepted`: connections up to now.
    """

    def __init__(self, port: int, late: float = 0.0) -> None:
        self._target, self._late = ("127.0.0.1", port), late
        self._mode: Mode = "passes"
        self._passes = threading.Event()
        self._passes.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0  # connections up to now
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Database 0 of the server behind it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def mode(self) -> Mode:
        """What it does."""
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
        """Something was asked."""

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
