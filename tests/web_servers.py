"""Real web servers as subprocesses on loopback, each serving one application object."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

_READY_WITHIN = 120.0  # seconds
_STOP_WITHIN = 5.0  # seconds
_LISTENING = re.compile(r"(?:(?:[Rr]unning on|Listening at:|Serving on) http://|TCP address )127\.0\.0\.1:(\d+)")
_MALFORMED = b"?\r\n\r\n"  # the server itself responds with 400, so the application's counters do not change
_OF_THE_CALLER = ("WEB_CONCURRENCY", "GUNICORN_CMD_ARGS")  # these would change the tested configuration


class WebServerError(RuntimeError):
    """A web server ended early or does not respond. The message contains all its output."""


class WebServer:
    """One running server process; `url` has no slash at its end."""

    url: str

    def __init__(self, process: subprocess.Popen[bytes], log: Path, probe: bytes) -> None:
        self.process, self._log, self._probe = process, log, probe
        self._last_words: str | None = None

    def output(self) -> str:
        """Return all output of both streams, also after the end. It has a line about the readiness probe."""
        return self._log.read_text(errors="replace") if self._last_words is None else self._last_words

    def wait_ready(self) -> None:
        """Wait for a response of a worker, and set `url`. WebServerError if the process ends or 120 seconds pass."""
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            listening = _LISTENING.search(self.output())
            if listening and _answers(int(listening[1]), self._probe):
                self.url = f"http://127.0.0.1:{listening[1]}"
                return
            time.sleep(0.02)
        state = "still runs" if self.process.poll() is None else f"ended with {self.process.returncode}"
        raise WebServerError(f"the server isn't ready, its process {state}; output:\n{self.output()}")

    def stop(self) -> None:
        """Terminate the process. Kill it and all its workers if it still runs after 5 seconds."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # its session: the process and its workers
            self.process.wait()
        self._last_words = self.output()


def _answers(port: int, probe: bytes) -> bool:
    """Return whether a worker responds. A mere connect succeeds before gunicorn's workers import the application.

    `probe`: a malformed request, or nothing for a server that passes such requests on: a worker then ends the
    connection.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(probe)
            if not probe:
                connection.shutdown(socket.SHUT_WR)
            return bool(connection.recv(1)) or not probe  # wsgiref responds without a status line
    except OSError:
        return False


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER}
    return inherited | {"PYTHONUNBUFFERED": "1"} | dict(extra or {})


def _with_path(app_dir: Path, extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment for a server that has no option for its application's folder."""
    environment = _environment(extra)
    paths = [str(app_dir.resolve()), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def _serve(command: list[str], app_dir: Path, env: dict[str, str], probe: bytes = _MALFORMED) -> Iterator[WebServer]:
    with tempfile.TemporaryDirectory(prefix="ratelimit-mw-web-") as folder:
        log = Path(folder) / "output.txt"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=app_dir,  # not the checkout: the package under test is the installed one
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # stop() can then end the workers too, and Ctrl-C reaches pytest only
            )
        server = WebServer(process, log, probe)
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()


@contextmanager
def serve_uvicorn(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the ASGI application "module:name" in `app_dir`. `env` is added to the environment of this process.

    `options` are uvicorn's, without any that hide its "running on" line. Failures raise WebServerError with the output.
    """
    # Port 0: the server picks a free port and prints the number, so no other process can take the port in between.
    fixed = ["uvicorn", "--app-dir", str(app_dir.resolve()), "--host", "127.0.0.1", "--port", "0"]
    with _serve([*fixed, *options, app], app_dir, _environment(env)) as server:
        yield server


@contextmanager
def serve_gunicorn(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the WSGI application "module:name", or an ASGI one with a worker class for ASGI. See serve_uvicorn."""
    fixed = ["gunicorn", "--chdir", str(app_dir.resolve()), "--bind", "127.0.0.1:0", "--graceful-timeout", "3"]
    if tuple(map(int, version("gunicorn").split(".")[:2])) >= (25, 1):
        fixed.append("--no-control-socket")  # all instances would share one socket file in the home folder
    with _serve([*fixed, *options, app], app_dir, _environment(env)) as server:
        yield server


@contextmanager
def serve_waitress(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the WSGI application "module:name". See serve_uvicorn."""
    with _serve(["waitress", "--listen=127.0.0.1:0", *options, app], app_dir, _with_path(app_dir, env)) as server:
        yield server


@contextmanager
def serve_uwsgi(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the WSGI application "module:name", imported before the workers are forked. See serve_uvicorn."""
    fixed = ["run_uwsgi", "--http-socket", "127.0.0.1:0", "--master", "--die-on-term", "--disable-logging"]
    fixed += ["--buffer-size", "32768"]  # bytes of a request's head; 4096 by default
    with _serve([*fixed, *options, "--module", app], app_dir, _with_path(app_dir, env), b"") as server:
        yield server


@contextmanager
def serve_hypercorn(
    app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[WebServer]:
    """Serve the ASGI application "module:name", over HTTP/2 if the client starts with that. See serve_uvicorn."""
    fixed = ["hypercorn", "--bind", "127.0.0.1:0", "--graceful-timeout", "3"]
    with _serve([*fixed, *options, app], app_dir, _with_path(app_dir, env)) as server:
        yield server


@contextmanager
def serve_granian(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the ASGI application "module:name", or a WSGI one with --interface wsgi. See serve_hypercorn."""
    with _held_port() as port:
        fixed = ["granian", "--interface", "asgi", "--port", str(port)]
        with _serve([*fixed, *options, app], app_dir, _with_path(app_dir, env)) as server:
            yield server


@contextmanager
def serve_daphne(app: str, app_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the ASGI application "module:name". See serve_uvicorn."""
    fixed = ["daphne", "--bind", "127.0.0.1", "--port", "0"]
    with _serve([*fixed, *options, app], app_dir, _with_path(app_dir, env)) as server:
        yield server


@contextmanager
def serve_developing(app: str, app_dir: Path, kind: str, env: Mapping[str, str] | None = None) -> Iterator[WebServer]:
    """Serve the WSGI application "module:name" with a server for development: `kind` is wsgiref or werkzeug."""
    with _serve(["developing", kind, app], app_dir, _with_path(app_dir, env)) as server:
        yield server


@contextmanager
def _held_port() -> Iterator[int]:
    """Yield a free port, and reserve it, for a server that does not print its port.

    The server must share the port, as granian does. Without the reservation, two servers could get the same port
    without an error.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))  # this socket never listens, so all connections go to the server
        port: int = holder.getsockname()[1]
        yield port
