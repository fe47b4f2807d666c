"""The command `serve`: addresses, secrets, workers, and what it survives."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxies.programs import served, stop, wait_for_port
from ratelimit_mw.cli import main
from redis_servers import RedisServer, free_port

SETTINGS = 'limits = "100000/day"\ntrusted_proxies = ["127.0.0.1"]\n'
FORWARDED = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.1\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("service"), SETTINGS) as (found, process):
        yield found
        assert process.poll() is None  # whatever it was sent


def raw(port: int, sent: bytes) -> bytes:
    """What a server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with contextlib.suppress(ConnectionError):  # it may close before it has read all
            connection.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                found += part
        return found


def status(port: int, path: str = "/healthz", method: str = "GET", body: Any = None, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=given)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_body_of_a_megabyte(port: int) -> None:
    body = b"x" * 1_000_000
    assert status(port, "/v1/hit", "POST", body) == 413
    assert (
        status(port, "/v1/forward", "POST", body, X_Forwarded_Method="POST", X_Forwarded_Uri="/", X_Forwarded_For="::1")
        == 200
    )
    assert status(port) == 200


def test_a_thousand_headers(port: int) -> None:
    many = "".join(f"X-{number}: {'v' * 50}\r\n" for number in range(1000))
    found = raw(port, f"GET /v1/forward HTTP/1.1\r\nHost: a\r\n{FORWARDED}{many}Connection: close\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 200 ")


def test_a_head_without_an_end_is_closed(port: int) -> None:
    assert b" 200 " not in raw(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 100_000)
    assert status(port) == 200


def test_http_1_0(port: int) -> None:
    found = raw(port, f"GET /v1/forward HTTP/1.0\r\n{FORWARDED}\r\n".encode())
    assert found.split()[1] == b"200"
    assert b"ratelimit: " in found.lower()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        (
            b"GET /v1/forward HTTP/1.1\r\nHost: a\r\nX-Forwarded-Uri: \xff\xfe%zz\r\nX-Forwarded-Method: \xe9\r\n"
            b"X-Forwarded-For: \xff\r\nConnection: close\r\n\r\n"
        ),
        b"POST /v1/hit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"POST /v1/hit HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/forward HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
    ],
    ids=["tls", "no-version", "bytes", "chunks", "negative", "upgrade"],
)
def test_nonsense_is_no_500(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        found = connection.makefile("rb").read()
    assert b" 500 " not in found.split(b"\r\n")[0]
    assert status(port) == 200


def test_half_open_connections_end_and_leave_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from ratelimit_mw.service.protocol import BoundedProtocol; BoundedProtocol.head_timeout = 0.2\n"
        "from ratelimit_mw.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "limits.toml").write_text(SETTINGS)
    port = free_port()
    command = [sys.executable, "-c", code, "serve", "limits.toml", "--bind", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port, process, Path("/dev/null"))
        files = Path(f"/proc/{process.pid}/fd")
        before = len(list(files.iterdir())) if files.exists() else 0
        halves = [
            b"",
            b"GET /healthz HTT",
            b"POST /v1/hit HTTP/1.1\r\nHost: a\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET",
        ]
        connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
        for number, connection in enumerate(connections):
            connection.sendall(halves[number % 4])
        assert status(port) == 200
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                while connection.recv(65536):
                    pass
            connection.close()
        if before:
            until = time.monotonic() + 60
            while len(list(files.iterdir())) > before and time.monotonic() < until:
                time.sleep(0.05)
            assert len(list(files.iterdir())) <= before
    finally:
        stop(process)


def test_sockets_workers_and_a_secret(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("sixteen-letters!\n")
    (tmp_path / "gone.sock").touch()
    (tmp_path / "gone.sock").unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "rl.sock"))  # of a process that was killed
    options = ["--bind", "unix:rl.sock", "--workers", "2", "--secret-file", "secret.txt"]
    with served(tmp_path, SETTINGS, *options) as (port, _):
        assert status(port) == 403
        assert status(port, X_RateLimit_Secret="sixteen-letters!") == 200
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(tmp_path / "rl.sock"))
            connection.sendall(b"GET /healthz HTTP/1.0\r\nX-RateLimit-Secret: sixteen-letters!\r\n\r\n")
            assert b'{"status":"ok"}' in connection.makefile("rb").read()
        assert main(["serve", str(tmp_path / "limits.toml"), "--bind", f"unix:{tmp_path}/rl.sock"]) == 1
    assert not (tmp_path / "rl.sock").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--bind", "0.0.0.0:0"], "--bind: 0.0.0.0:0 is neither loopback nor a unix socket: add --secret-file"),
        (["--bind", "[::]:0"], "--bind: [::]:0 is neither loopback"),
        (["--grpc", "0.0.0.0:1"], "--grpc: 0.0.0.0:1 is neither loopback"),
        (["--bind", "example.org:80"], "--bind: example.org:80 is neither loopback"),
        (["--bind", "8900"], "--bind: got '8900', expected HOST:PORT"),
        (["--bind", "127.0.0.1:99999"], "--bind: got '127.0.0.1:99999', expected HOST:PORT"),
        (["--bind", "unix:"], "--bind: got 'unix:', expected a path"),
        (["--bind", "unix:limits.toml"], "--bind unix:limits.toml: limits.toml exists and is not a socket"),
        (["--workers", "0"], "--workers: got 0, expected 1 to 512"),
        (["--secret-file", "none.txt"], "--secret-file none.txt: "),
        (["--secret-file", "empty.txt"], "--secret-file empty.txt: is empty, expected a secret"),
        (["--secret-file", "short.txt"], "--secret-file short.txt.secret: expected at least 16"),
    ],
)
def test_a_wrong_start_names_the_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    Path("limits.toml").write_text(SETTINGS)
    Path("empty.txt").write_text(" \n")
    Path("short.txt").write_text("short")
    assert main(["serve", "limits.toml", *options]) == 1
    assert capsys.readouterr().err.startswith(f"ratelimit_mw: {problem}")


def test_wrong_settings_do_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    file = tmp_path / "limits.toml"
    for text, problem in (
        ('limits = "5/minut"', "limits: '5/minut': unknown period"),
        ('limits = "5/minute"\nconcurrent = 5', "concurrent: counts requests in progress"),
        ('limits = "5/minute"\nstrict = true', "store: memory:// counts in one process, and there are 3"),
    ):
        file.write_text(text)
        assert main(["serve", str(file), "--workers", "3"]) == 1
        assert problem in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "none.toml")]) == 1


HOLDER = """
import http.client, json, sys, time

def call(path, body):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    connection.request("POST", path, json.dumps(body))
    return json.loads(connection.getresponse().read())

body = json.loads(sys.argv[2])
slot = call("/v1/hit", body)["slot"]
print("held", flush=True)
while True:
    call("/v1/settle", {**body, "renew": slot})
    time.sleep(0.1)
"""


def test_a_holder_that_is_killed_holds_its_slot_for_its_lifetime_only(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The case of a token server: one process takes slots, renews them, and is killed."""
    body = {"limits": {"concurrent": 1, "slot_lifetime": 1}, "key": "job"}
    settings = f'limits = "1/day"\nstore = "{redis_server.url}"\nstore_timeout = 5.0\n'
    with served(tmp_path, settings) as (port, _):

        def hit() -> Any:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/v1/hit", json.dumps(body))
                return json.loads(connection.getresponse().read())

        command = [sys.executable, "-c", HOLDER, str(port), json.dumps(body)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        until = time.monotonic() + 1.5  # longer than the lifetime: it is renewed meanwhile
        while time.monotonic() < until:
            assert hit()["allowed"] is False
            time.sleep(0.1)
        process.kill()
        process.wait()
        process.stdout.close()
        until = time.monotonic() + 60
        while not (taken := hit())["allowed"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert taken["slot"]
