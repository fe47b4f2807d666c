"""Tests the command `serve`: addresses, secrets, workers, and invalid or hostile requests."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from proxies.programs import served
from ratelimit_mw.cli import main, serve
from ratelimit_mw.service import protocol
from ratelimit_mw.service.protocol import BoundedProtocol
from redis_servers import RedisServer

SETTINGS = 'limits = "100000/day"\ntrusted_proxies = ["127.0.0.1"]\n'
FORWARDED = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.1\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("service"), SETTINGS) as (found, process):
        yield found
        assert process.poll() is None  # no request has stopped the service


def raw(port: int, sent: bytes) -> bytes:
    """Send bytes, and return all that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with contextlib.suppress(ConnectionError):  # the server may close the connection before it has read all
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_accepted_connections_have_tcp_nodelay(host: str) -> None:
    """Otherwise the body of each response waits 40 ms for the client to acknowledge the headers."""
    delayed: list[bool] = []

    async def main() -> None:
        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            delayed.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0)
            writer.close()

        bound = serve._bound(serve.Address(host, None, host, 0), 0o600)
        async with await asyncio.start_server(accepted, sock=bound):
            reader, writer = await asyncio.open_connection(host, bound.getsockname()[1])
            await reader.read()
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
    assert delayed == [False]


def test_body_of_a_megabyte_is_refused_or_ignored(port: int) -> None:
    body = b"x" * 1_000_000
    assert status(port, "/v1/hit", "POST", body) == 413
    assert (
        status(port, "/v1/forward", "POST", body, X_Forwarded_Method="POST", X_Forwarded_Uri="/", X_Forwarded_For="::1")
        == 200
    )
    assert status(port) == 200


def test_connection_closes_after_an_unread_body(port: int) -> None:
    """An unread body is not parsed as another request: the server closes the connection after one response."""
    head = f"POST /v1/forward HTTP/1.1\r\nHost: a\r\n{FORWARDED}Content-Length: 1000000\r\n\r\n".encode()
    found = raw(port, head + b"x" * 999_999)
    assert found.count(b"HTTP/1.1 ") == 1
    assert found.startswith(b"HTTP/1.1 200 ")


def test_thousand_headers_are_accepted(port: int) -> None:
    many = "".join(f"X-{number}: {'v' * 50}\r\n" for number in range(1000))
    found = raw(port, f"GET /v1/forward HTTP/1.1\r\nHost: a\r\n{FORWARDED}{many}Connection: close\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("end", [b"\r\n", b""])
@pytest.mark.parametrize("size", [100_000, 500_000, 5_000_000])
def test_long_head_is_read_and_refused(port: int, size: int, end: bytes) -> None:
    """A proxy admits a request if it cannot send all of its call."""
    head = b"GET /v1/forward HTTP/1.1\r\nHost: a\r\n" + b"X-A: abcd\r\n" * (size // 11) + end
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head)  # raises if the server does not read it
        connection.shutdown(socket.SHUT_WR)
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["detail"] == "headers: expected at most 65536 bytes with the request line"
    assert status(port) == 200


def test_endless_head_ends_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"X-A: abcd\r\n" * 10_000_000)
    assert status(port) == 200


@pytest.mark.parametrize(
    ("line", "code"),
    [(b"X-A: \x01", 400), (b"X-A" + b"\x80: b", 400), (b"X-A: " + b"b" * 100_000, 431)],
    ids=["control", "name", "long"],
)
def test_refusal_of_a_head_has_the_form_that_nginx_needs(port: int, line: bytes, code: int) -> None:
    """nginx responds with 500 if it receives an error status other than 403."""
    for path in (b"/v1/nginx", b"/v1/forward"):
        answer = raw(port, b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\nConnection: close\r\n\r\n" % (path, line))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert json.loads(body)["status"] == code
        if path == b"/v1/nginx":
            assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
            assert b"\r\nx-ratelimit-status: %d\r\nx-ratelimit-body: %b" % (code, body) in head
        else:
            assert head.startswith(b"HTTP/1.1 %d " % code)


@pytest.mark.parametrize("size", [8192, 8193, 60_000])
def test_long_path_after_v1_envoy_is_refused(port: int, size: int) -> None:
    target = b"/v1/envoy/" + b"%" * (size - 1)
    found = raw(port, b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (target, FORWARDED.encode() + b"Connection: close\r\n"))
    assert found.split()[1] == (b"200" if size == 8192 else b"414")


def test_fragment_in_a_call_is_refused(port: int) -> None:
    """uvicorn would drop it, but an app behind Envoy may read it as a part of the path."""
    found = raw(
        port, f"GET /v1/envoy/health#/login HTTP/1.1\r\nHost: a\r\n{FORWARDED}Connection: close\r\n\r\n".encode()
    )
    assert found.split()[1] == b"400"


def test_repeated_errors_of_a_client_are_logged_once(tmp_path: Path) -> None:
    sent = [
        b"GET /v1/forward HTTP/1.1\r\nHost: a\r\nX-A: \x01%b\r\n\r\n" % (b"y" * 5000),
        b"GET /v1/forward HTTP/1.1\r\nHost: a\r\nX-A: %b\r\n\r\n" % (b"y" * 100_000),
        f"GET /v1/forward HTTP/1.0\r\n{FORWARDED}Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n".encode(),
    ]
    with served(tmp_path, SETTINGS) as (port, _):
        for one in sent * 3:
            raw(port, one)
    lines = (tmp_path / "service.txt").read_text().splitlines()
    invalid = "its bytes are no valid HTTP, such as a control character in a header"
    long = "expected at most 65536 bytes with the request line"
    assert lines[1:] == [
        f"ratelimit_mw: status 400: refused a call of 127.0.0.1: request: {invalid} [RL-242]",
        f"ratelimit_mw: status 431: refused a call of 127.0.0.1: headers: {long} [RL-242]",
    ]


def test_http_1_0_request_is_decided(port: int) -> None:
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
def test_malformed_requests_get_no_500(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        found = connection.makefile("rb").read()
    assert b" 500 " not in found.split(b"\r\n")[0]
    assert status(port) == 200


def in_each_process(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let each Python that a test starts run this code first."""
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def open_files(process: int) -> int:
    """Return the number of open files of the processes that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children")
    return sum(len(list(Path(f"/proc/{child}/fd").iterdir())) for child in children.read_text().split())


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_half_open_connections_end_and_leak_no_file_descriptor(
    tmp_path: Path, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = "sys.modules['httptools'] = None; " if parser == "h11" else ""
    code = f"import sys; {without}from ratelimit_mw.service.protocol import BoundedProtocol as P; P.head_timeout = 0.2"
    in_each_process(tmp_path, monkeypatch, code)
    with served(tmp_path, SETTINGS) as (port, process):
        counts_files = Path("/proc/self/fd").exists()
        before = open_files(process.pid) if counts_files else 0
        halves = [
            b"",
            b"GET /healthz HTT",
            b"POST /v1/hit HTTP/1.1\r\nHost: a\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET",
            f"POST /v1/forward HTTP/1.1\r\nHost: a\r\n{FORWARDED}Content-Length: 9\r\n\r\n".encode(),
        ]
        connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
        for number, connection in enumerate(connections):
            connection.sendall(halves[number % 5])
        assert status(port) == 200
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                while connection.recv(65536):
                    pass
            connection.close()
        if counts_files:
            until = time.monotonic() + 60
            while open_files(process.pid) > before and time.monotonic() < until:
                time.sleep(0.05)
            assert open_files(process.pid) <= before


def test_requests_that_arrive_while_a_worker_ends_are_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy admits a request if its connection is reset."""
    monkeypatch.setattr(protocol, "_LAST_TIME", 60.0)
    (tmp_path / "limits.toml").write_text(SETTINGS)
    call = f"GET /v1/forward HTTP/1.1\r\nHost: a\r\n{FORWARDED}\r\n".encode()

    async def main() -> list[bytes]:
        make = partial(serve.make_worker_app, str(tmp_path / "limits.toml"), "", [], 0o600)
        server = uvicorn.Server(uvicorn.Config(make, factory=True, http=BoundedProtocol, proxy_headers=False))
        bound = serve._bound(serve.Address("", None, "127.0.0.1", 0), 0o600)
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)
        idle, new = [await asyncio.open_connection(*bound.getsockname()) for _ in range(2)]
        idle[1].write(call)
        assert (await idle[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        signal.raise_signal(signal.SIGTERM)
        while server.servers[0].is_serving():  # noqa: ASYNC110  # nor has asyncio
            await asyncio.sleep(0.01)
        answers = []
        for reader, writer in (idle, new):
            writer.write(call)
            answers.append(await reader.read())
            writer.close()
        await serving
        return answers

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # the server repeats the signal when it has ended
    try:
        answers = asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [answer.count(b"HTTP/1.1 200 ") for answer in answers] == [1, 1]
    assert [answer.lower().count(b"\r\nconnection: close\r\n") for answer in answers] == [1, 1]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds processes in /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with served(tmp_path, SETTINGS, "--workers", "2") as (port, process):
        process.kill()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=60).close()
            except ConnectionRefusedError:
                return
            time.sleep(0.05)
    raise AssertionError("a worker listens still")


def test_workers_go_on_if_the_new_settings_have_a_mistake(tmp_path: Path) -> None:
    with served(tmp_path, SETTINGS) as (port, process):
        (tmp_path / "limits.toml").write_text('limits = "5/minut"')
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while "keeping worker" not in (tmp_path / "service.txt").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status(port) == 200
    assert "ratelimit_mw: limits.toml:1: limits: '5/minut': unknown period" in (tmp_path / "service.txt").read_text()


def test_service_runs_with_a_unix_socket_workers_and_a_secret(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("sixteen-letters!\n")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "rl.sock"))  # left over by a process that was killed
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


@pytest.mark.parametrize("workers", ["1", "2"])
def test_idle_connections_are_kept_longer_than_proxies_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """A proxy admits a request that it sends while the service closes the connection."""
    (tmp_path / "limits.toml").write_text(SETTINGS)
    configs: list[Any] = []

    def stopped(server: Any, sockets: Any = None) -> None:
        configs.append(server.config)
        for one in sockets or server.sockets:
            one.close()

    monkeypatch.setattr("uvicorn.supervisors.Multiprocess.run", stopped)
    monkeypatch.setenv("WEB_CONCURRENCY", "")  # `serve` sets it
    main(["serve", str(tmp_path / "limits.toml"), "--bind", "127.0.0.1:0", "--workers", workers])
    (config,) = configs
    idle_times = {"nginx": 60, "caddy": 120, "envoy": 3600}  # their defaults, in seconds
    assert config.timeout_keep_alive == 3900 > max(idle_times.values())


def test_connection_without_the_secret_is_closed(tmp_path: Path) -> None:
    """Otherwise the idle connection would stay open for an hour."""
    (tmp_path / "secret.txt").write_text("sixteen-letters!\n")
    with served(tmp_path, SETTINGS, "--secret-file", "secret.txt") as (port, _):
        answer = raw(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-RateLimit-Secret: wrong\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize(("options", "mode"), [([], 0o660), (["--socket-mode", "600"], 0o600)])
def test_unix_sockets_have_restricted_permissions(tmp_path: Path, options: list[str], mode: int) -> None:
    with served(tmp_path, SETTINGS, "--bind", "unix:a.sock", "--grpc", "unix:b.sock", *options):
        assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.sock", "b.sock")] == [mode, mode]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--socket-mode", "rw"], "--socket-mode: got 'rw', expected octal digits such as 660"),
        (["--socket-mode", "1777"], "--socket-mode: got '1777', expected"),
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
        (["--secret-file", "short.txt"], "--secret-file short.txt: expected at least 16"),
    ],
)
def test_invalid_option_is_an_error_that_names_the_option(
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


def test_invalid_settings_prevent_the_start(
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


@pytest.mark.one_redis
def test_slot_of_a_killed_process_expires_after_its_lifetime(redis_server: RedisServer, tmp_path: Path) -> None:
    """As with a token server, a process takes a slot and renews it until the process is killed."""
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
        until = time.monotonic() + 1.5  # longer than the lifetime, because the slot is renewed
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
