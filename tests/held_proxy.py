"""A TCP proxy that can keep what a server answers until it is told to pass it on: a server as slow as one likes."""

import socket
import threading
import time
from contextlib import AbstractContextManager, suppress

_AT_MOST = 20.0  # seconds that anything is kept, so that whoever waits for it in vain fails instead of hanging


class HeldProxy(AbstractContextManager["HeldProxy", None]):
    """In front of one port of this machine, in threads of its own. `asked`: somebody has sent something since `hold`.
    `accepted`: connections up to now.

    It keeps nothing longer than 20 seconds. An answer takes `latency` seconds even when nothing is kept.
    """

    def __init__(self, port: int, latency: float = 0.0) -> None:
        self._target, self._latency = ("127.0.0.1", port), latency
        self._passes, self.asked = threading.Event(), threading.Event()
        self._passes.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Keep what is answered from now on."""
        self.asked.clear()
        self._passes.clear()

    def release(self) -> None:
        """Pass on what was kept, and all that follows."""
        self._passes.set()

    def __exit__(self, *_: object) -> None:
        self.release()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.accepted += 1
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers:
                    self._passes.wait(_AT_MOST)
                    time.sleep(self._latency)
                else:
                    self.asked.set()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
