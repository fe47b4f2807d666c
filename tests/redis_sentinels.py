"""Runs real Redis Sentinels: three of them on loopback, which monitor a master and its replica."""

import socket
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from redis import Redis

from redis_servers import RedisServer, RedisServerError

SERVICE = "limits"
_SENTINELS = 3  # the fewest that can still agree when one is lost
_PATIENT = 20.0  # seconds for a reply, because a busy machine must not look like a lost server
_SETTLED_WITHIN = 60.0  # seconds: the Sentinels try a stalled failover again
_OPTIONS = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class SentinelServer(RedisServer):
    """A Sentinel that does not monitor anything yet."""

    def _launch(self) -> None:
        configuration = Path(self._folder.name) / "sentinel.conf"  # the Sentinel stores its state there
        configuration.write_text("sentinel deny-scripts-reconfig yes\n")
        self._run([str(configuration), "--sentinel", "--bind", "127.0.0.1", "--port", str(self.port)])

    def ask(self, command: str, timeout: float = 1.0) -> str:
        """See `RedisServer.ask`. Sends no QUIT, which Sentinels do not have."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(f"{command}\r\n".encode())
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        return received.decode(errors="replace").removesuffix("\r\n")


class RedisSentinels(AbstractContextManager["RedisSentinels", None]):
    """Three Sentinels, a master and a replica, which know each other; a context manager.

    Raises RedisServerError if they do not agree within 60 seconds.
    """

    def __init__(self, binary: Path) -> None:
        with ExitStack() as running:
            self.servers = [running.enter_context(RedisServer(binary, *_OPTIONS)) for _ in range(2)]
            self.sentinels = [running.enter_context(SentinelServer(binary)) for _ in range(_SENTINELS)]
            self._join()
            self._running = running.pop_all()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes and remove their folders; may be called again."""
        self._running.close()

    @property
    def url(self) -> str:
        """The URL of all Sentinels, for this package."""
        return f"redis+sentinel://{self.hosts}/{SERVICE}"

    @property
    def hosts(self) -> str:
        """The addresses of all Sentinels."""
        return ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)

    def _join(self) -> None:
        master, replica = self.servers
        _tell(replica, f"REPLICAOF 127.0.0.1 {master.port}")
        for one in self.sentinels:
            _tell(one, f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {master.port} 2")
            for option in ("down-after-milliseconds 500", "failover-timeout 3000"):
                _tell(one, f"SENTINEL SET {SERVICE} {option}")
        self._wait_settled()

    def _wait_settled(self) -> None:
        deadline = time.monotonic() + _SETTLED_WITHIN
        while not self.is_settled():
            if time.monotonic() > deadline:
                raise RedisServerError(f"not settled: {[self._state(one) for one in self.sentinels]}")
            time.sleep(0.05)

    def is_settled(self) -> bool:
        """Return whether all Sentinels know each other and the master, and the replica is connected to the master.

        After a failover this takes ten seconds, so it is faster to start new servers.
        """
        if any(one.process.poll() is not None for one in [*self.servers, *self.sentinels]):
            return False
        first, *others = map(self._state, self.sentinels)
        port, *counts = first
        replica = next(one for one in self.servers if str(one.port) != port).ask("INFO replication", _PATIENT)
        linked = f"master_port:{port}\r" in replica and "master_link_status:up\r" in replica
        return linked and counts == ["master", str(_SENTINELS - 1), "1"] and all(other == first for other in others)

    def _state(self, sentinel: RedisServer) -> tuple[str, ...]:
        """Return a Sentinel's view of the service: port and flags of the master, number of other Sentinels and of
        replicas.
        """
        with self.client(sentinel) as client:
            flat = client.execute_command("SENTINEL", "MASTER", SERVICE)
        known = dict(zip(flat[::2], flat[1::2], strict=True))
        return tuple(known[name] for name in ("port", "flags", "num-other-sentinels", "num-slaves"))

    def client(self, server: RedisServer) -> Redis:
        """Return a client of one of the servers, which returns replies unparsed."""
        client = Redis(port=server.port, protocol=2, decode_responses=True)
        client.response_callbacks.clear()
        return client

    def master(self) -> RedisServer:
        """Return the master, in the view of the first running Sentinel."""
        asked = next(one for one in self.sentinels if one.process.poll() is None)
        port = asked.ask(f"SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}", _PATIENT).split("\r\n")[-1]
        return next(one for one in self.servers if str(one.port) == port)

    def fail_over(self) -> RedisServer:
        """Make the replica the master. Returns it when the Sentinels report it as master."""
        before = self.master()
        deadline = time.monotonic() + _SETTLED_WITHIN
        while (reply := self.sentinels[0].ask(f"SENTINEL FAILOVER {SERVICE}", _PATIENT)) != "+OK":
            if time.monotonic() > deadline:
                raise RedisServerError(reply)
            time.sleep(0.05)
        return self.wait_for_another(before)

    def wait_for_another(self, before: RedisServer) -> RedisServer:
        """Wait until another server is the master, and return that server."""
        deadline = time.monotonic() + _SETTLED_WITHIN
        while (now := self.master()) is before:
            if time.monotonic() > deadline:
                raise RedisServerError(f"no failover: {self._state(self.sentinels[0])}")
            time.sleep(0.01)
        return now


def _tell(server: RedisServer, command: str) -> None:
    if (reply := server.ask(command, timeout=5.0)) != "+OK":
        raise RedisServerError(f"{command}: {reply}")
