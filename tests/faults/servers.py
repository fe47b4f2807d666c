"""Redis servers with faults, and checks of what is left on a server after a test."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from redis import Redis

from faults.load import settled
from redis_servers import RedisServer


def leaves_nothing(server: RedisServer) -> None:
    """Check that no connection stays open, and that each key has a time to live."""
    assert not settled(lambda: server.ask("CLIENT LIST").count(" addr=") > 1), server.ask("CLIENT LIST")
    with Redis.from_url(server.url) as client:
        assert [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1] == []


@contextmanager
def long_script(server: RedisServer) -> Iterator[None]:
    """Keep the server busy with an endless script until the end of the block."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(b"EVAL 'while true do end' 0\r\n")
        assert not settled(lambda: not server.ask("PING").startswith("-BUSY"))
        yield
        server.ask("SCRIPT KILL")
        connection.recv(1000)


def crowded_out(server: RedisServer) -> int:
    """Fill a server with other keys, and return how many keys, old or new, it has evicted."""
    with Redis.from_url(server.url) as client:
        evicted: int = client.info("stats")["evicted_keys"]
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
        for first in range(0, 10_000, 100):
            others = client.pipeline(transaction=False)
            for number in range(first, first + 100):
                others.set(f"other:{number}", "x" * 100, ex=900)
            others.execute()
        now: int = client.info("stats")["evicted_keys"]
    return now - evicted


@contextmanager
def evictions(server: RedisServer) -> Iterator[Callable[[], int]]:
    """Yield a function that returns how often the server evicted the limiter's most often evicted key."""
    with Redis.from_url(server.url) as client, client.pubsub(ignore_subscribe_messages=True) as messages:
        messages.psubscribe("__keyevent@*__:evicted")
        messages.get_message(timeout=30)
        counts = Counter[bytes]()

        def most() -> int:
            wanted: int = client.info("stats")["evicted_keys"]
            while counts.total() < wanted:
                message = messages.get_message(timeout=30)
                assert message is not None, f"{counts.total()} of {wanted} evictions"
                counts[message["data"]] += 1
            return max((count for key, count in counts.items() if not key.startswith(b"other:")), default=0)

        yield most


class LoadingServer(RedisServer):
    """A server that loads a file slowly when it is restarted."""

    KEYS = 3000
    SLOWLY = ("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")  # microseconds

    def __enter__(self) -> Self:
        return self

    def save(self) -> None:
        """Save the data of the server, and many other keys."""
        fill = f"for n = 1, {self.KEYS} do redis.call('SET', 'other:' .. n, string.rep('x', 100), 'EX', 900) end"
        assert self.ask(f'EVAL "{fill}" 0', timeout=10) == "$-1"
        assert self.ask("SAVE", timeout=10) == "+OK"

    def restart_loading(self) -> threading.Thread:
        """Kill the server and restart it. Returns while it loads, with a thread that ends when the server is ready."""
        self.kill()
        starting = threading.Thread(target=self.restart)
        starting.start()
        assert not settled(lambda: not self._says_loading())
        return starting

    def _says_loading(self) -> bool:
        try:
            return self.ask("PING").startswith("-LOADING")
        except OSError:
            return False
