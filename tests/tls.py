"""TLS for tests: temporary certificates, and a proxy for servers that are built without TLS."""

import asyncio
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import trustme

from redis_servers import RedisServer, RedisServerError, free_port


class Certificates(NamedTuple):
    """Files: the authority that signed the server's certificate, another authority, the certificate, its key."""

    authority: Path
    stranger: Path
    chain: Path
    key: Path


def made_in(folder: Path) -> Certificates:
    """Create certificates for 127.0.0.1 in a folder."""
    files = Certificates(*(folder / f"{name}.pem" for name in Certificates._fields))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.authority)
    trustme.CA().cert_pem.write_to_path(files.stranger)
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(files.key)
    for part in server.cert_chain_pems:
        part.write_to_path(files.chain, append=True)
    return files


@contextmanager
def server_with_tls(binary: Path, files: Certificates, *options: str) -> Iterator[tuple[RedisServer, int]]:
    """Run a server, and yield it with a port for TLS. The port is a proxy's if the server was built without TLS."""
    port = free_port()
    own = ["--tls-port", str(port), "--tls-cert-file", str(files.chain), "--tls-key-file", str(files.key)]
    own += ["--tls-ca-cert-file", str(files.authority), "--tls-auth-clients", "no"]
    with ExitStack() as stack:
        try:
            server = stack.enter_context(RedisServer(binary, *own, *options))
        except RedisServerError as error:
            if "Bad directive" not in str(error) and "Failed finding TLS support" not in str(error):  # Valkey's
                raise
            server = stack.enter_context(RedisServer(binary, *options))
            port = stack.enter_context(tls_proxy(server.port, files))
        yield server, port


@contextmanager
def tls_proxy(port: int, files: Certificates) -> Iterator[int]:
    """Run a proxy that accepts TLS and connects to `port` without it. Yield the port of the proxy."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.chain, files.key)
    ends = asyncio.Event()
    started = threading.Event()
    ports: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            server, commands = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return answers.transport.abort()
        try:
            await asyncio.gather(_copied(client, commands), _copied(server, answers))
        finally:
            commands.transport.abort()
            answers.transport.abort()

    async def main() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
        ports.append(listening.sockets[0].getsockname()[1])
        loops.append(asyncio.get_running_loop())
        started.set()
        await ends.wait()
        listening.close()
        if sys.version_info >= (3, 13):  # earlier versions cannot end a handshake that has begun
            listening.abort_clients()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # aborted connections are closed in the next turn of the loop

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    started.wait()
    try:
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(ends.set)
        thread.join()


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await source.read(65536):
            target.write(data)
    target.transport.abort()
