"""Tests on real servers that one hostile client with many connections does not harm other clients."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from attacks.wire import Request, send
from web.real_servers import APPS, KINDS
from web_servers import WebServer

PATIENCE = 60.0  # seconds; nothing here is timed
BAD = "127.88.0.66"
ASGI = ("uvicorn", "uvicorn-standard", "hypercorn", "granian")
WSGI = {"waitress": (), "gunicorn-gthread": ("--threads", "6")}
SHARED = 5  # slots


@pytest.fixture(scope="module", params=ASGI)
def server(request: pytest.FixtureRequest, store: str) -> Iterator[WebServer]:
    kind = KINDS[request.param]
    with kind.serve("hostile_asgi:app", APPS, *kind.options, env={"STORE": store}) as running:
        yield running


@pytest.fixture(scope="module", params=WSGI)
def wsgi_server(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    kind = KINDS[request.param]
    options = (*kind.options, *WSGI[request.param])
    with kind.serve("hostile_wsgi:app", APPS, *options, env={"STORE": "memory://"}) as running:
        yield running


def port_of(server: WebServer) -> int:
    return int(server.url.rpartition(":")[2])


def ask(server: WebServer, path: str, source: str) -> int:
    return send(port_of(server), Request("GET", path, (), source)).status


def begin(server: WebServer, path: str, source: str) -> socket.socket:
    """Send a request without reading its response."""
    connection = socket.create_connection(("127.0.0.1", port_of(server)), PATIENCE, source_address=(source, 0))
    connection.sendall(Request("GET", path, (), source).written())
    return connection


def facts(server: WebServer) -> str:
    return send(port_of(server), Request("GET", "/facts")).body.decode()


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not there() and time.monotonic() < end:
        time.sleep(0.02)
    assert there()


def other(number: int) -> str:
    return f"127.88.1.{number + 1}"


def all_slots_are_free(server: WebServer) -> None:
    """Check that other clients can use all slots at once."""
    until(lambda: "0 work, 0 wait" in facts(server))
    with ExitStack() as opened:
        for number in range(SHARED):
            opened.enter_context(begin(server, "/hang", other(number)))
        until(lambda: facts(server).startswith(f"{SHARED} work"))
    until(lambda: "0 work, 0 wait" in facts(server))


def test_client_with_a_full_queue_does_not_block_other_clients(server: WebServer) -> None:
    with ExitStack() as opened:
        for _ in range(15):
            opened.enter_context(begin(server, "/hang", BAD))
        until(lambda: facts(server) == "2 work, 8 wait")
        assert [ask(server, "/quick", other(number)) for number in range(20)] == [200] * 20
        assert facts(server) == "2 work, 8 wait"
    all_slots_are_free(server)


def test_client_that_disconnects_repeatedly_leaks_no_slot(server: WebServer) -> None:
    """The client disconnects during the decision, while waiting, or while the app runs."""
    for number in range(60):
        connection = begin(server, "/hang", BAD)
        if number % 3 == 0:
            time.sleep(0.01)
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close() sends RST
        connection.close()
    until(lambda: ask(server, "/quick", other(30)) == 200)
    all_slots_are_free(server)


def test_client_that_floods_the_waiting_places_does_not_block_others(wsgi_server: WebServer) -> None:
    over = Event()
    statuses: list[int] = []

    def flood() -> None:
        while not over.is_set():
            statuses.append(ask(wsgi_server, "/", BAD))

    threads = [Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: 429 in statuses)  # by then a request of the client waits
    found = [ask(wsgi_server, "/", other(40)) for _ in range(3)]  # two of these requests are delayed
    over.set()
    for thread in threads:
        thread.join()
    assert found == [200] * 3
