"""A TCP proxy that simulates the faults of networks and servers: delays, errors, broken connections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Literal

import hiredis

Fate = Literal["passes", "is late", "is lost", "is answered by nobody", "fails", "is unknown"]
ERRORS = {"fails": b"-ERR made up\r\n", "is unknown": b"-NOSCRIPT No matching script.\r\n"}


async def _command(stream: asyncio.StreamReader) -> bytes:
    """Read one command, and return its bytes."""
    read = [await stream.readline()]
    for _ in range(int(read[0][1:])):
        read.append(await stream.readline())
        read.append(await stream.readexactly(int(read[-1][1:]) + 2))
    return b"".join(read)


class UnrulyProxy:
    """A proxy in front of one port of this machine. `fate` returns the fate of a command that runs a script.

    `is late`: the proxy sends the command at once, and its reply `delay` seconds later. `is answered by nobody`:
    the command runs, and the connection breaks. `is lost`: the connection breaks, and the command does not run.
    """

    def __init__(self, port: int, fate: Callable[[], Fate], delay: float) -> None:
        self._port, self._fate, self._delay = port, fate, delay
        self.fates: list[Fate] = []
        self.port = 0

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, commands = await asyncio.open_connection("127.0.0.1", self._port)
        fate: list[Fate] = ["passes"]  # of the last command; its reply comes before the next command is read
        replied = asyncio.Event()
        replies = asyncio.create_task(self._reply(server, answers, fate, replied))
        try:
            while True:
                command = await _command(client)
                fate[0] = self._fate_of(command)
                if fate[0] in ERRORS:
                    answers.write(ERRORS[fate[0]])
                elif fate[0] == "is lost":
                    return
                else:
                    replied.clear()
                    commands.write(command)
                    await replied.wait()
        except (ConnectionError, ValueError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            replies.cancel()
            answers.transport.abort()
            commands.transport.abort()

    def _fate_of(self, command: bytes) -> Fate:
        script = command[:40].upper()
        fate: Fate = self._fate() if b"EVAL" in script else "passes"
        if fate == "is unknown" and b"EVALSHA" not in script:
            fate = "passes"  # EVAL sends the script itself
        self.fates.append(fate)
        return fate

    async def _reply(
        self, server: asyncio.StreamReader, answers: asyncio.StreamWriter, fate: list[Fate], replied: asyncio.Event
    ) -> None:
        whole = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await server.read(65536):
                if fate[0] == "is answered by nobody":
                    break
                if fate[0] == "is late":
                    await asyncio.sleep(self._delay)
                answers.write(data)
                whole.feed(data)
                if whole.gets() is not False:
                    replied.set()
        answers.transport.abort()
        replied.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["UnrulyProxy"]:
        """Listen at `port` until the block ends."""
        server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


def fates(random: Random) -> Callable[[], Fate]:
    """Return a function that returns random fates. Most commands pass."""
    choices: list[Fate] = ["is late", "is lost", "is answered by nobody", "fails", "is unknown"]
    return lambda: random.choice(choices) if random.random() < 0.15 else "passes"
