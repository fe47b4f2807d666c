"""Tests the connection of an event loop to one server, with servers that the tests control."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.stores.redis import async_transport
from ratelimit_mw.stores.redis.async_transport import Call, Channel, drop
from ratelimit_mw.stores.redis.protocol import NoScript
from ratelimit_mw.stores.redis.url import async_connection_factory

pytestmark = pytest.mark.promise(8)

PATIENT = 5.0  # seconds


class Peer:
    """A connection that a server accepted. It replies to commands other than scripts with `other_answer`."""

    def __init__(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream, self.writer = stream, writer
        self.scripts: list[list[bytes]] = []  # commands that wait for a reply
        self.closed = asyncio.Event()
        self.other_answer = b"+OK\r\n"

    async def serve(self) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            while count := await self._stream.readline():
                words = []
                for _ in range(int(count[1:])):
                    size = int((await self._stream.readline())[1:])
                    words.append((await self._stream.readexactly(size + 2))[:-2])
                if words[0] == b"EVALSHA":
                    self.scripts.append(words)
                else:
                    self.writer.write(self.other_answer)
        self.closed.set()
        self.writer.close()

    def answer(self, text: bytes, number: bytes) -> None:
        """Reply with a number and a text."""
        self.writer.write(b"$%d\r\n%s\r\n" % (len(number + text), number + text))

    def answer_all(self) -> None:
        """Reply to each script with its first key."""
        scripts, self.scripts = self.scripts, []
        for words in scripts:
            self.answer(words[3], words[-1])


class Server:
    """A server, and the connections that it accepted."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.port = 0

    async def accept(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(stream, writer)
        self.peers.append(peer)
        await peer.serve()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Server"]:
        server = await asyncio.start_server(self.accept, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for peer in self.peers:
                peer.writer.transport.abort()


def channel_to(server: Server, **options: Any) -> Channel:
    return Channel(async_connection_factory(f"redis://127.0.0.1:{server.port}/0"), **options)


def run(work: Callable[[Server, Channel], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), Server().listening() as server:
            channel = channel_to(server)
            await work(server, channel)
            await channel.close()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


def evaluate(key: bytes) -> Any:
    return ("EVALSHA", "digest", 1, key, b"arguments")


def ask(channel: Channel, key: bytes) -> "asyncio.Task[Any]":
    return asyncio.create_task(channel.query(evaluate(key)))


async def outcomes(*tasks: Awaitable[Any]) -> list[Any]:
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [str(one) if isinstance(one, StoreError) else one for one in found]


def test_commands_are_pipelined_and_each_gets_its_own_reply() -> None:
    async def work(server: Server, channel: Channel) -> None:
        tasks = [ask(channel, b"%d" % number) for number in range(50)]
        await until(lambda: server.peers and len(server.peers[0].scripts) == 50)
        server.peers[0].answer_all()
        assert await outcomes(*tasks) == [b"%d" % number for number in range(50)]
        assert len(server.peers) == 1

    run(work)


def test_reordered_replies_fail_all_calls() -> None:
    async def work(server: Server, channel: Channel) -> None:
        tasks = [ask(channel, b"a"), ask(channel, b"b")]
        await until(lambda: server.peers and len(server.peers[0].scripts) == 2)
        server.peers[0].scripts.reverse()
        server.peers[0].answer_all()
        first, second = await outcomes(*tasks)
        assert first == second
        assert first.endswith("answers another command")
        await asked_again(server, channel)

    run(work)


async def asked_again(server: Server, channel: Channel) -> None:
    """Check that another command is sent, and gets its reply, on a new connection."""
    before = len(server.peers)
    task = ask(channel, b"again")
    await until(lambda: len(server.peers) > before and server.peers[-1].scripts)
    server.peers[-1].answer_all()
    assert await task == b"again"


def test_a_reply_without_a_command_ends_the_connection() -> None:
    async def work(server: Server, channel: Channel) -> None:
        await channel.ready()
        server.peers[0].writer.write(b"+OK\r\n")
        await until(lambda: not channel.is_connected)
        await asked_again(server, channel)

    run(work)


def test_a_duplicate_reply_fails_the_next_call() -> None:
    async def work(server: Server, channel: Channel) -> None:
        tasks = [ask(channel, b"a"), ask(channel, b"b")]
        await until(lambda: server.peers and len(server.peers[0].scripts) == 2)
        first = server.peers[0].scripts[0]
        for _ in range(2):
            server.peers[0].answer(b"a", first[-1])
        answer, error = await outcomes(*tasks)
        assert answer == b"a"
        assert error.endswith("answers another command")

    run(work)


def test_error_replies_fail_only_their_own_commands() -> None:
    async def work(server: Server, channel: Channel) -> None:
        tasks = [ask(channel, b"a"), ask(channel, b"b"), ask(channel, b"c")]
        await until(lambda: server.peers and len(server.peers[0].scripts) == 3)
        server.peers[0].writer.write(b"-NOSCRIPT never\r\n-ERR made up\r\n")
        server.peers[0].answer(b"c", server.peers[0].scripts[2][-1])
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, NoScript)
        assert str(second) == "ResponseError: made up"
        assert third == b"c"

    run(work)


def test_a_lost_connection_fails_its_pending_calls() -> None:
    async def work(server: Server, channel: Channel) -> None:
        tasks = [ask(channel, b"a"), ask(channel, b"b")]
        await until(lambda: server.peers and len(server.peers[0].scripts) == 2)
        server.peers[0].writer.transport.abort()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(str(error).startswith("the connection was lost: ") for error in errors)
        assert errors[0] is not errors[1]
        await asked_again(server, channel)

    run(work)


def test_a_late_connection_gets_no_new_calls_and_closes_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "LATE_WORK_TIMEOUT", 0.2)

    async def work(server: Server, channel: Channel) -> None:
        answered, lost = ask(channel, b"answered"), ask(channel, b"lost")
        await until(lambda: server.peers and len(server.peers[0].scripts) == 2)
        channel.retire_late(60.0)
        assert channel.is_connected  # the commands are not that late
        channel.retire_late(0.0)
        assert not channel.is_connected
        await asked_again(server, channel)
        late = server.peers[0].scripts.pop(0)
        server.peers[0].answer(b"answered", late[-1])
        assert await outcomes(answered, lost) == [b"answered", "no answer in time"]
        await server.peers[0].closed.wait()
        assert channel.is_connected
        channel.retire_late(0.0)
        assert channel.is_connected  # no command waits on this connection

    run(work)


def _is_asked(server: Server, number: int) -> bool:
    return len(server.peers) > number and bool(server.peers[number].scripts)


def test_late_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "_MAX_CONNECTIONS", 3)

    async def work(server: Server, channel: Channel) -> None:
        tasks = []
        for number in range(5):
            tasks.append(ask(channel, b"a"))
            await until(partial(_is_asked, server, number))
            channel.retire_late(0.0)
        await server.peers[0].closed.wait()
        await server.peers[1].closed.wait()
        assert not any(peer.closed.is_set() for peer in server.peers[2:])
        assert await outcomes(*tasks[:2]) == ["no answer in time"] * 2
        for peer in server.peers[2:]:
            peer.answer_all()
        assert await outcomes(*tasks[2:]) == [b"a"] * 3

    run(work)


def test_a_reply_from_a_replica_ends_the_connection() -> None:
    async def work(server: Server, channel: Channel) -> None:
        task = ask(channel, b"a")
        await until(lambda: server.peers and server.peers[0].scripts)
        server.peers[0].writer.write(b"-READONLY You can't write against a read only replica.\r\n")
        assert (await outcomes(task))[0].startswith("the server is a replica")
        assert not channel.is_connected
        await asked_again(server, channel)

    run(work)


def test_the_channel_follows_a_server_to_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "FIND_INTERVAL", 0.0)

    async def main() -> None:
        async with asyncio.timeout(20), Server().listening() as old, Server().listening() as new:
            places = [old]

            async def find() -> Any:
                return "127.0.0.1", places[-1].port

            channel = channel_to(old, find=find)
            pending = ask(channel, b"a")
            await until(lambda: old.peers and old.peers[0].scripts)
            places.append(new)
            tasks = []
            while not new.peers:
                tasks.append(ask(channel, b"b"))
                await asyncio.sleep(0.001)
            await until(lambda: channel.is_connected)
            tasks.append(ask(channel, b"c"))
            await until(lambda: [words for words in new.peers[0].scripts if words[3] == b"c"])
            old.peers[0].answer_all()
            new.peers[0].answer_all()
            assert await outcomes(pending) == [b"a"]
            assert set(await outcomes(*tasks)) <= {b"b", b"c"}
            await channel.close()

    asyncio.run(main())


def test_a_failure_to_connect_calls_on_lost() -> None:
    async def main() -> None:
        lost = []
        async with Server().listening() as server:
            channel = channel_to(server, on_lost=lambda: lost.append(1))
        with pytest.raises(StoreError, match=r"^cannot connect: "):
            await channel.query(evaluate(b"a"))
        assert lost == [1]
        await channel.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "says"),
    [(TimeoutError(), "cannot connect: TimeoutError"), (OSError("no route"), "cannot connect: no route")],
)
def test_connect_errors_have_a_cause_even_without_a_message(error: Exception, says: str) -> None:
    async def main() -> None:
        async def find() -> Any:
            raise error

        async with Server().listening() as server:
            channel = channel_to(server, find=find)
            with pytest.raises(StoreError) as raised:
                await channel.query(evaluate(b"a"))
            assert str(raised.value) == says
            await channel.close()

    asyncio.run(main())


def test_closing_fails_calls_and_drops_a_connection_that_opens_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opening of the connection ignores the cancellation here, as `asyncio.wait_for` may."""
    monkeypatch.setattr(async_transport, "_OPENING_GRACE", 0.01)
    opens, dropped = asyncio.Event(), []
    whole = async_transport._open_connection

    async def open_late(*arguments: Any) -> Any:
        connection = await whole(*arguments)
        with contextlib.suppress(asyncio.CancelledError):
            await opens.wait()
        return connection

    def noted(connection: Any) -> None:
        dropped.append(connection)
        drop(connection)

    monkeypatch.setattr(async_transport, "_open_connection", open_late)
    monkeypatch.setattr(async_transport, "drop", noted)

    async def work(server: Server, channel: Channel) -> None:
        task = ask(channel, b"a")
        await until(lambda: server.peers)
        await asyncio.sleep(0.05)
        await channel.close()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], StoreError)
        assert len(dropped) == 1
        await server.peers[0].closed.wait()

    run(work)


def test_closing_fails_pending_calls() -> None:
    async def work(server: Server, channel: Channel) -> None:
        task = ask(channel, b"a")
        await until(lambda: server.peers and server.peers[0].scripts)
        await channel.close()
        errors: list[object] = await asyncio.gather(task, return_exceptions=True)
        assert [(type(error), str(error)) for error in errors] == [(StoreNotQueried, "the store was closed")]
        await server.peers[0].closed.wait()

    run(work)


def test_a_rejected_asking_command_fails_its_call() -> None:
    async def work(server: Server, channel: Channel) -> None:
        await channel.ready()
        task = asyncio.create_task(channel.query(evaluate(b"a"), asking=True))
        await until(lambda: server.peers[0].scripts)
        server.peers[0].answer_all()
        assert await task == b"a"
        server.peers[0].other_answer = b"-NOPERM this user has no permissions to run the 'asking' command\r\n"
        task = asyncio.create_task(channel.query(evaluate(b"b"), asking=True))
        await until(lambda: server.peers[0].scripts)
        server.peers[0].answer_all()
        assert "permissions to run the 'asking" in (await outcomes(task))[0]

    run(work)


def test_call_numbers_wrap_around_after_four_bytes() -> None:
    async def work(server: Server, channel: Channel) -> None:
        await channel.ready()
        connection: Any = channel._connection
        connection._last_number = 2**32 - 2
        tasks = [ask(channel, b"a"), ask(channel, b"b"), ask(channel, b"c")]
        await until(lambda: len(server.peers[0].scripts) == 3)
        assert [words[-1] for words in server.peers[0].scripts] == [b"\xff" * 4, bytes(4), b"\0\0\0\1"]
        server.peers[0].answer_all()
        assert await outcomes(*tasks) == [b"a", b"b", b"c"]

    run(work)


def test_several_calls_share_one_write() -> None:
    async def work(server: Server, channel: Channel) -> None:
        await channel.ready()
        connection: Any = channel._connection
        written: list[bytes] = []
        write = connection._transport.write

        class Counted:
            """A transport that records writes."""

            def write(self, data: bytes) -> None:
                written.append(data)
                write(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

        transport = connection._transport
        connection._transport = Counted()
        found: list[Any] = []
        channel.send([Call(evaluate(b"a"), found.append), Call(evaluate(b"b"), found.append)])
        await until(lambda: len(server.peers[0].scripts) == 2)
        server.peers[0].answer_all()
        await until(lambda: len(found) == 2)
        assert (found, len(written)) == ([b"a", b"b"], 1)

    run(work)
