"""Tests each proxy with the configuration of its page: the service's failures and refusals never admit a request."""

import contextlib
import http.client
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxies.programs import KINDS, found, missing, proxy, served
from redis_servers import free_port
from web.real_servers import APPS
from web_servers import serve_uvicorn

SETTINGS = 'limits = "1/day using fixed_window"\ntrusted_proxies = ["127.0.0.1"]\n'
CLIENT = "127.0.0.9"  # Envoy reports another address for 127.0.0.1
HTTP = [kind for kind in KINDS if kind != "envoy-grpc"]


@pytest.fixture(scope="module")
def app() -> Iterator[int]:
    with serve_uvicorn("proxied_asgi:bare", APPS, "--no-access-log") as server:
        yield int(server.url.rpartition(":")[2])


def status(port: int, head: bytes) -> int:
    """Return the status of the response to a request; 0 if the proxy closes the connection without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(CLIENT, 0)) as connection:
        try:
            connection.sendall(b"%b\r\nConnection: close\r\n\r\n" % head)
            answer = connection.makefile("rb").read()
        except ConnectionError:
            return 0
    return int(answer.split()[1]) if answer else 0


def sized(size: int) -> bytes:
    return b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Long: " + b"x" * size


def many(count: int) -> bytes:
    lines = b"\r\n".join(b"X-%d: 1" % number for number in range(count))
    return b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lines


def target(size: int) -> bytes:
    return b"GET /" + b"%61" * (size // 3) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b"


def hosted(size: int) -> bytes:
    return b"GET /x HTTP/1.1\r\nHost: " + b"a" * size


def mixed(size: int) -> bytes:
    return b"GET /%b HTTP/1.1\r\nHost: %b\r\nX-Long: %b" % (b"p" * size, b"a" * size, b"x" * size)


def named(size: int) -> bytes:
    """Return a request whose method has `size` letters."""
    return b"%b /x HTTP/1.1\r\nHost: 127.0.0.1" % (b"M" * size)


def with_value(value: bytes) -> bytes:
    return b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + value


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_form_of_a_request_head_evades_the_limit(kind: str, app: int, tmp_path: Path) -> None:
    """The client has used up its limit, so a 200 would mean that a request was not counted."""
    if found(kind) is None:
        pytest.skip(missing(kind))
    grpc = free_port()
    options = ["--grpc", f"127.0.0.1:{grpc}"] if kind == "envoy-grpc" else []
    heads = [
        *map(sized, (10, 7_000, 14_000, 15_000, 15_200, 20_000, 30_000, 50_000, 60_000, 70_000, 200_000, 500_000)),
        *map(many, (50, 79, 90, 96, 97, 98, 99, 100, 200, 1000, 4000, 20_000)),
        *map(target, (7_000, 8_000, 8_190, 8_300, 14_000, 15_000, 50_000, 250_000)),
        *map(hosted, (6_900, 7_400, 7_900, 8_100, 8_190, 8_300, 12_000, 15_000, 16_000, 60_000)),
        *map(mixed, (2_000, 3_400, 3_500, 3_700, 4_000, 4_400, 5_000, 8_000, 20_000)),
        *map(named, (20, 4_000, 8_000, 14_000)),
        *map(with_value, (b"\x01", b"\x7f", b"\x80\xff", b"a\x00b", b"\xed\xa0\x80", b"a\rb", b"a\r\n b")),
    ]
    with (
        served(tmp_path, SETTINGS, *options) as (service, process),
        proxy(kind, tmp_path, {"app": app, "service": service, "grpc": grpc}) as port,
    ):
        first = status(port, sized(10))
        seen = [status(port, head) for head in heads]
        last = status(port, sized(10))  # both processes are alive
        assert process.poll() is None
    assert (first, last) == (200, 429)
    assert set(seen) <= {0, 400, 405, 414, 429, 431}, seen
    assert seen.count(429) > 5  # the shorter heads reach the service


CADDY_ERRORS = re.compile(r"^    handle_errors \{\n.*?^    \}\n", re.MULTILINE | re.DOTALL)
DENYING: dict[str, tuple[int, Callable[[str], str]]] = {  # the change that each page names, and the status with it
    "nginx": (500, lambda text: text.replace("            error_page 502 504 = @open;\n", "")),
    "caddy": (502, lambda text: CADDY_ERRORS.sub("", text)),
    "haproxy": (
        503,
        lambda text: text.replace("if away or status == 200 then", "if status == 200 then").replace(
            "status = status", "status = away and 503 or status"
        ),
    ),
    "envoy": (403, lambda text: text.replace("failure_mode_allow: true", "failure_mode_allow: false")),
    "envoy-grpc": (
        500,
        lambda text: text.replace("timeout: 0.25s\n", "timeout: 0.25s\n              failure_mode_deny: true\n"),
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_slow_or_stopped_service_refuses_with_the_change_on_the_page(kind: str, app: int, tmp_path: Path) -> None:
    if found(kind) is None:
        pytest.skip(missing(kind))
    grpc = free_port()
    options = ["--grpc", f"127.0.0.1:{grpc}"] if kind == "envoy-grpc" else []
    refused, change = DENYING[kind]
    with (
        served(tmp_path, SETTINGS, *options) as (service, process),
        proxy(kind, tmp_path, {"app": app, "service": service, "grpc": grpc}, patient=False, change=change) as port,
    ):
        os.killpg(process.pid, signal.SIGSTOP)  # the process and its workers
        slow = status(port, sized(10))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        away = status(port, sized(10))
    # Caddy has another status for a slow service.
    assert [slow, away] == [504 if kind == "caddy" else refused, refused]


ON_REFUSED = """
def busy(request, verdict):
    return 503, {"X-Own": "1"}, "busy"


def fine(request, verdict):
    return 200, {"X-Own": "1"}, "fine"
"""


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize(("name", "expected"), [("busy", 503), ("fine", 429)])
def test_custom_refusals_never_admit(kind: str, name: str, expected: int, app: int, tmp_path: Path) -> None:
    """The refusals have a 503 without `Retry-After`, or a 200."""
    if found(kind) is None:
        pytest.skip(missing(kind))
    (tmp_path / "own_refusals.py").write_text(ON_REFUSED, "utf-8")
    settings = f'{SETTINGS}blocklist = ["{CLIENT}"]\non_refused = "call:own_refusals:{name}"\n'
    with (
        served(tmp_path, settings) as (service, _),
        proxy(kind, tmp_path, {"app": app, "service": service, "grpc": 0}) as port,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(CLIENT, 0))
        connection.request("GET", "/x")
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
    if kind == "envoy":  # Envoy takes a 5xx for a failure of the service
        expected = 429
    assert (answer.status, answer.getheader("retry-after"), body) == (expected, None, name)


class Closing:
    """A service that refuses the first request of each connection, and closes the connection at the second one."""

    def __init__(self) -> None:
        self.closed = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ended = False
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            if self._ended:
                connection.close()
                return
            threading.Thread(target=self._answer, args=(connection,)).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            if _head(connection):
                # nginx needs a 403; the other proxies pass the 403 on
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nDate: now\r\nContent-Length: 0\r\n\r\n")
                self.closed += _head(connection)

    def stop(self) -> None:
        self._ended = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listening.close()


def _head(connection: socket.socket) -> bool:
    """Read a request; return whether there was one."""
    found = b""
    while b"\r\n\r\n" not in found:
        part = connection.recv(65536)
        if not part:
            return False
        found += part
    return True


@pytest.mark.parametrize("kind", ["nginx", "caddy", "haproxy"])
def test_proxy_sends_a_request_again_if_its_connection_closes(kind: str, app: int, tmp_path: Path) -> None:
    """Envoy admits such a request, so the service must not close idle connections before Envoy does."""
    if found(kind) is None:
        pytest.skip(missing(kind))
    service = Closing()
    try:
        with proxy(kind, tmp_path, {"app": app, "service": service.port, "grpc": 0}) as port:
            statuses = [status(port, sized(10)) for _ in range(5)]
    finally:
        service.stop()
    assert statuses == [429 if kind == "nginx" else 403] * 5  # the status that each proxy sends for the service's 403
    assert service.closed > 0
