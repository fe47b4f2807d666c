"""Calls raise StoreError in time, or return the right decision, if Redis is down, frozen, replaced or confused.

No call ever gets the decision of another call.
"""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import pytest
from msgspec import msgpack

from ratelimit_mw import Charge, Decision, SlidingWindowCounter, StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing.blocking import blocking
from redis_servers import RedisServer

pytestmark = pytest.mark.promise(8)

PATIENCE = 5.0  # seconds; the timeout of the store is 0.05
LONG = 2.0  # seconds: a timeout for tests that count units, because a call that times out may be charged
Open = Callable[..., AbstractContextManager[Store]]


@contextmanager
def _threaded(url: str, timeout: float = 0.05) -> Iterator[Store]:
    store = RedisStore(url, timeout=timeout)
    yield store
    store.close()


def _awaited(url: str, timeout: float = 0.05) -> AbstractContextManager[Store]:
    return blocking(AsyncRedisStore(url, timeout=timeout))


@pytest.fixture(params=[_threaded, _awaited], ids=["threads", "asyncio"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Return a function that opens a store, with the default timeout of this module or another."""
    opened: Open = request.param
    return opened


@contextmanager
def in_time() -> Iterator[None]:
    """Check that the block does not hang."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < PATIENCE


def question(number: int) -> Charge:
    """Return a charge whose decision shows its number."""
    return Charge(f"k{number}", SlidingWindowCounter(100 + number, 3600))


def answered(store: Store, number: int) -> Decision:
    """Take until a call succeeds, check that the decision is for this number, and return it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            (decision,) = store.take([question(number)])
        except StoreError:
            assert time.monotonic() < end
        else:
            assert decision.limit == 100 + number
            return decision


def fails(store: Store, number: int) -> bool:
    """Check that every method of the store raises StoreError."""
    charge = question(number)
    for verb in (store.take, store.peek, store.settle, store.reset):
        with pytest.raises(StoreError):
            verb([charge])
    return True


def test_calls_fail_while_the_server_is_frozen_and_succeed_after(opened: Open, redis_server: RedisServer) -> None:
    with opened(redis_server.url) as store:
        answered(store, 1)
        redis_server.pause()
        with in_time():
            assert all(fails(store, number) for number in range(2, 4))
        redis_server.resume()
        for number in range(10, 20):
            assert answered(store, number).allowed  # `answered` detects the reply to an earlier call


def test_calls_fail_while_the_server_is_frozen_from_the_start(opened: Open, redis_server: RedisServer) -> None:
    redis_server.pause()
    with opened(redis_server.url) as store:
        with in_time():
            assert all(fails(store, number) for number in range(2))
        redis_server.resume()
        answered(store, 4)


def test_calls_fail_on_a_port_without_a_listener(opened: Open) -> None:
    with socket.socket() as taken:  # bound, so that no other process gets it, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
        with opened(url) as store, in_time():
            assert all(fails(store, number) for number in range(10))


def test_calls_succeed_after_the_server_crashes_and_restarts_empty(opened: Open, redis_server: RedisServer) -> None:
    with opened(redis_server.url, timeout=LONG) as store:
        assert [answered(store, 1).remaining for _ in range(3)] == [100, 99, 98]
        redis_server.kill()
        with in_time():
            assert all(fails(store, 1) for _ in range(5))
        redis_server.restart()
        assert answered(store, 1).remaining == 100


def test_restart_between_two_calls_fails_no_call(opened: Open, redis_server: RedisServer) -> None:
    with opened(redis_server.url, timeout=LONG) as store:
        answered(store, 1)
        redis_server.restart()
        assert store.take([question(1)])[0].remaining == 100  # no call fails


@pytest.mark.parametrize(
    "options",
    [
        ("--maxmemory", "1"),
        ("--requirepass", "secret"),
        ("--replicaof", "127.0.0.1 1"),
        ("--rename-command", "EVALSHA", ""),
    ],
    ids=["full", "password", "replica", "no scripts"],
)
def test_calls_fail_on_a_server_that_rejects_commands(
    opened: Open, redis_servers: dict[str, RedisServer], options: tuple[str, ...]
) -> None:
    binary = next(iter(redis_servers.values())).binary
    with Refusing(binary, *options) as server, opened(server.url) as store, in_time():
        for number in range(5):
            with pytest.raises(StoreError):
                store.take([question(number)])


class Refusing(RedisServer):
    """Counts as started once its port replies, because a server with a password rejects PING."""

    def ask(self, command: str, timeout: float = 1.0) -> str:
        answer = super().ask(command, timeout)
        if answer.startswith("-NOAUTH"):
            return "+PONG" if command == "PING" else f"process_id:{self.process.pid}\r"
        return answer


def test_calls_fail_on_a_missing_database(opened: Open, redis_server: RedisServer) -> None:
    with opened(redis_server.url.replace("/0", "/9999")) as store, in_time():
        assert all(fails(store, number) for number in range(3))


@contextmanager
def listener(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Yield the URL of a server that is not Redis. `talk`: handles a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

        def serve_one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def commands(connection: socket.socket) -> Iterator[bytes]:
    """Yield the name of each command that is received."""
    with connection.makefile("rb") as stream:
        while count := stream.readline():
            words = [stream.read(int(stream.readline()[1:]) + 2) for _ in range(int(count[1:]))]
            yield words[0].strip().upper()


def _nonsense(reply: bytes) -> Callable[[socket.socket], object]:
    """Return a handler that replies as Redis does, except for EVALSHA, which gets `reply`."""

    def talk(connection: socket.socket) -> None:
        for command in commands(connection):
            connection.sendall({b"EVALSHA": reply, b"SCRIPT": b"$1\r\n0\r\n"}.get(command, b"+OK\r\n"))

    return talk


def _drips(connection: socket.socket) -> None:
    """Send a long reply byte by byte. A client that checks no deadline between reads would wait for 16 seconds."""
    for command in commands(connection):
        if command != b"EVALSHA":
            connection.sendall(b"+OK\r\n")
            continue
        for byte in b"*8\r\n:" + b"1" * 4000:
            connection.sendall(bytes([byte]))
            time.sleep(0.004)


def _http(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


NO_REDIS: dict[str, Callable[[socket.socket], object]] = {
    "closes at once": lambda connection: connection.shutdown(socket.SHUT_RDWR),
    "closes when asked": lambda connection: connection.recv(65536),
    "speaks HTTP": _http,
    "says OK": _nonsense(b"+OK\r\n"),
    "says OK again and again": _nonsense(b"+OK\r\n" * 50),
    "drips": _drips,
    "answers in part": _nonsense(b"*8\r\n:1\r\n"),
    "answers too few": _nonsense(b"*2\r\n:1\r\n:1\r\n"),
    "answers text": _nonsense(b"*8\r\n" + b"+1\r\n" * 8),
    "answers nil": _nonsense(b"$-1\r\n"),
    "answers an error": _nonsense(b"-ERR no\r\n"),
    "never heard of the script": _nonsense(b"-NOSCRIPT never\r\n"),
    "has no codec at all": _nonsense(b"-NOCODEC none\r\n"),
    "answers bytes": _nonsense(b"\x00\xff\x00\xff\r\n"),
}


@pytest.mark.parametrize("what", NO_REDIS)
def test_calls_fail_on_a_server_that_is_not_redis(opened: Open, what: str) -> None:
    with listener(NO_REDIS[what]) as url, opened(url) as store, in_time():
        for number in range(5):
            with pytest.raises(StoreError):
                store.take([question(number)])


def test_extra_reply_is_not_used_for_the_next_call(opened: Open) -> None:
    numbers = itertools.count(1)

    def talk(connection: socket.socket) -> None:
        for command in commands(connection):
            answer = f":{next(numbers)}\r\n" * 8 if command == b"EVALSHA" else ""
            connection.sendall(f"*1\r\n*8\r\n{answer}".encode() * 2 if answer else b"+OK\r\n")

    with listener(talk) as url, opened(url) as store:
        assert [answered_by_anyone(store) for _ in range(3)] == [1, 2, 3]


def answered_by_anyone(store: Store) -> int:
    """Take until a call succeeds, and return the remaining units."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return store.take([question(1)])[0].remaining
        except StoreError:
            assert time.monotonic() < end


class Answering:
    """A redis-py client whose server always sends the same reply."""

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.connection_pool = nullcontext()
        self.connection_pool.connection_kwargs = {"socket_timeout": 0.01}  # type: ignore[attr-defined]

    def execute_command(self, *_: object) -> object:
        return self.reply


INTEGERS, GOOD = [1] * 8, [True, *[1] * 7]  # a decision as integers of the protocol, and as msgpack


def test_take_rejects_replies_without_one_decision_per_charge() -> None:
    none_or_two = [[], [INTEGERS, INTEGERS], INTEGERS, [[INTEGERS]], {"a": 1}]
    wrong = [*none_or_two, *([row] for row in ([1] * 7, [1] * 9, [1.0] * 8, [0.5] * 8, ["1"] * 8, [True] * 8))]
    bad = [GOOD[:7], [*GOOD, 1], [1, *GOOD[1:]], [True, 0.5, *GOOD[2:]], [True, "1", *GOOD[2:]], [*GOOD[:3], None, 1]]
    packed = [
        *map(msgpack.encode, [*none_or_two, [GOOD, GOOD], GOOD, *([row] for row in bad)]),
        msgpack.encode([GOOD])[:-1],
        msgpack.encode([GOOD]) + b"\x01",
        b"",
        b"\xc1",
    ]
    for reply in (None, b"OK", "12345678", *wrong, *packed):
        with pytest.raises(StoreError, match=r"the server answered .* to take.lua"):
            RedisStore(Answering(reply)).take([question(1)])


def test_settle_rejects_replies_without_one_result_per_settlement() -> None:
    wrong = [[], {"a": 1}, [[INTEGERS]], [INTEGERS, INTEGERS], INTEGERS, [[INTEGERS], [0]]]
    packed = [[[GOOD]], [GOOD, GOOD], GOOD, [[GOOD], [0]], [GOOD, [0]]]
    for reply in (None, b"OK", "ab", *wrong, *map(msgpack.encode, packed)):
        with pytest.raises(StoreError, match=r"the server answered .* to settle.lua"):
            RedisStore(Answering(reply)).settle([question(1)])
    for reply in ([INTEGERS], msgpack.encode([GOOD])):
        RedisStore(Answering(reply)).settle([question(1)])
