"""If a Sentinel sends an invalid reply or an outdated address, or replies too slowly, the store queries others."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from ratelimit_mw import Charge, Decision, FixedWindow, StoreError
from ratelimit_mw.stores import Store
from redis_sentinels import SERVICE, SentinelServer
from redis_servers import RedisServer
from stores.opened import Open, each_kind

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis]

CHARGES = [Charge("{k}:r", FixedWindow(10, 60))]
PATIENCE = 20.0  # seconds


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(redis_server.binary) as server:
        yield server


@pytest.fixture
def honest(server: RedisServer) -> Iterator[RedisServer]:
    with SentinelServer(server.binary) as sentinel:
        assert sentinel.ask(f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {server.port} 1") == "+OK"
        yield sentinel


@contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Yield the port of a Sentinel. `talk`: handles each of its connections."""

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            talk(client)

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, args=(listening,), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


def answered(store: Store) -> Decision:
    """Take until a call succeeds, and return its decision."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return store.take(CHARGES)[0]
        except StoreError:
            assert time.monotonic() < end
            time.sleep(0.05)


NONSENSE = {
    "one part": b"*1\r\n$1\r\nh\r\n",
    "no port": b"*2\r\n$1\r\nh\r\n$1\r\nx\r\n",
    "a port that cannot be": b"*2\r\n$1\r\nh\r\n$5\r\n99999\r\n",
    "no host": b"*2\r\n$0\r\n\r\n$1\r\n1\r\n",
    "a host of two lines": b"*2\r\n$3\r\na\nb\r\n$1\r\n1\r\n",
    "bytes": b"*2\r\n$1\r\n\xff\r\n$1\r\n1\r\n",
    "a number": b":7\r\n",
    "nothing in a list": b"*2\r\n$-1\r\n$-1\r\n",
    "lists": b"*2\r\n*0\r\n*0\r\n",
    "an empty list, and numbers as services": b"*-1\r\n",
    "no reply": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@each_kind
@pytest.mark.parametrize("name", NONSENSE)
def test_store_skips_a_sentinel_with_invalid_replies(opened: Open, name: str, honest: RedisServer) -> None:
    def talk(client: socket.socket) -> None:
        while client.recv(65536):
            client.sendall(NONSENSE[name])

    with talking(talk) as port:
        hosts = f"127.0.0.1:{port},127.0.0.1:{honest.port}"
        with opened(f"redis+sentinel://{hosts}/{SERVICE}", timeout=5) as store:
            assert answered(store).remaining == 9
        with opened(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}", timeout=5) as store:
            with pytest.raises(StoreError, match=r"^cannot connect: Sentinel 127.0.0.1:\d+: ") as caught:
                store.take(CHARGES)
            assert len(str(caught.value)) < 600


@each_kind
def test_store_skips_a_sentinel_that_replies_too_slowly(opened: Open, honest: RedisServer) -> None:
    """The Sentinel sends a byte every 0.2 s, so a client that reads to the end would wait for a minute."""

    def talk(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(b"$1000000\r\n")
        for _ in range(300):
            client.sendall(b"x")
            time.sleep(0.2)

    with talking(talk) as port:
        hosts = f"127.0.0.1:{port},127.0.0.1:{honest.port}"
        with opened(f"redis+sentinel://{hosts}/{SERVICE}", timeout=5) as store:
            assert answered(store).remaining == 9


@each_kind
@pytest.mark.parametrize("instead", ["nobody", "a replica"])
def test_store_skips_a_sentinel_with_an_outdated_master(
    opened: Open, instead: str, server: RedisServer, honest: RedisServer
) -> None:
    """The Sentinel still names a former master, which is gone or has become a replica."""
    with RedisServer(server.binary) as before, SentinelServer(server.binary) as stale:
        assert stale.ask(f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {before.port} 1") == "+OK"
        if instead == "nobody":
            before.kill()
        else:
            before.ask(f"REPLICAOF 127.0.0.1 {server.port}")
        hosts = f"127.0.0.1:{stale.port},127.0.0.1:{honest.port}"
        with opened(f"redis+sentinel://{hosts}/{SERVICE}", timeout=5) as store:
            assert answered(store).remaining == 9
            assert server.ask("DBSIZE") == ":1"
