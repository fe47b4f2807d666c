"""Starts a redis-server for a run."""

import socket
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

_READY_WITHIN = 10.0  # seconds


class RedisServer(AbstractContextManager["RedisServer", None]):
    """One redis-server from the PATH on a loopback port, by default a free one, without persistence.

    `options`: of its command line. Raises FileNotFoundError if it is not on the PATH, and RuntimeError with its output
    if it does not start.
    """

    def __init__(self, *options: str, port: int | None = None) -> None:
        self._options = options
        self.port = port or free_port()
        self._closing = ExitStack()
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def url(self) -> str:
        """The URL of database 0, for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _start(self) -> None:
        folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-mw-bench-")))
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", *self._options]
        log = folder / "output.txt"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["redis-server", *options, "--dir", str(folder)],  # noqa: S607  # the PATH decides which
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._closing.callback(self._stop)
        deadline = time.monotonic() + _READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {log.read_text(errors='replace')}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Return whether this server answers. Another one may have taken the port after it was found free."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"INFO server\r\nQUIT\r\n")
                received = b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return False
        return f"process_id:{self._process.pid}\r".encode() in received

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
