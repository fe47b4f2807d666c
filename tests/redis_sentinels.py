"""Real Redis Sentinels: three of them on loopback, which watch over a master and its replica."""

import socket
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from redis import Redis

from redis_servers import RedisServer, RedisServerError

SERVICE = "limits"
_SENTINELS = 3  # the fewest that still agree when one is lost
_PATIENT = 20.0  # seconds for an answer; a busy machine must not look like a server that is lost
_SETTLED_WITHIN = 60.0  # seconds: a failover that stalls is tried again by the Sentinels
_OPTIONS = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class SentinelServer(RedisServer):
    """One Sentinel. It watches over nothing yet."""

    def _launch(self) -> None:
        configuration = Path(self._folder.name) / "sentinel.conf"  # it writes there what it learns
        configuration.write_text("sentinel deny-scripts-reconfig yes\n")
        self._run([str(configuration), "--sentinel", "--bind", "127.0.0.1", "--port", str(self.port)])

    def ask(self, command: str, timeout: float = 1.0) -> str:
        """See RedisServer; a Sentinel knows no QUIT."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(f"{command}\r\n".encode())
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        return received.decode(errors="replace").removesuffix("\r\n")


class RedisSentinels(AbstractContextManager["RedisSentinels", None]):
    """Three Sentinels, a master and a replica, which know each other; a context manager.

    Raises RedisServerError if they do not within 20 seconds.
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
        """All Sentinels, as this package takes them."""
        return f"redis+sentinel://{self.hosts}/{SERVICE}"

    @property
    def hosts(self) -> str:
        """All Sentinels."""
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
        """Whether all know each other and where the master is, and the replica is in step with it.

        After a failover it takes them ten seconds, so a new set is there sooner.
        """
        if any(one.process.poll() is not None for one in [*self.servers, *self.sentinels]):
            return False
        first, *others = map(self._state, self.sentinels)
        port, *counts = first
        replica = next(one for one in self.servers if str(one.port) != port).ask("INFO replication", _PATIENT)
        linked = f"master_port:{port}\r" in replica and "master_link_status:up\r" in replica
        return linked and counts == ["master", str(_SENTINELS - 1), "1"] and all(other == first for other in others)

    def _state(self, sentinel: RedisServer) -> tuple[str, ...]:
        """What a Sentinel knows of the service."""
        with self.client(sentinel) as client:
            flat = client.execute_command("SENTINEL", "MASTER", SERVICE)
        known = dict(zip(flat[::2], flat[1::2], strict=True))
        return tuple(known[name] for name in ("port", "flags", "num-other-sentinels", "num-slaves"))

    def client(self, server: RedisServer) -> Redis:
        """A client of one of the servers, that reads replies as they come."""
        client = Redis(port=server.port, protocol=2, decode_responses=True)
        client.response_callbacks.clear()
        return client

    def master(self) -> RedisServer:
        """The master, as the first Sentinel that runs knows it."""
        asked = next(one for one in self.sentinels if one.process.poll() is None)
        port = asked.ask(f"SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}", _PATIENT).split("\r\n")[-1]
        return next(one for one in self.servers if str(one.port) == port)

    def fail_over(self) -> RedisServer:
        """Have the replica become the master. Returns it when the Sentinels say so."""
        before = self.master()
        deadline = time.monotonic() + _SETTLED_WITHIN
        while (reply := self.sentinels[0].ask(f"SENTINEL FAILOVER {SERVICE}", _PATIENT)) != "+OK":
            if time.monotonic() > deadline:
                raise RedisServerError(reply)
            time.sleep(0.05)
        return self.wait_for_another(before)

    def wait_for_another(self, before: RedisServer) -> RedisServer:
        """Wait until another server is the master."""
        deadline = time.monotonic() + _SETTLED_WITHIN
        while (now := self.master()) is before:
            if time.monotonic() > deadline:
                raise RedisServerError(f"no failover: {self._state(self.sentinels[0])}")
            time.sleep(0.01)
        return now


def _tell(server: RedisServer, command: str) -> None:
    if (reply := server.ask(command, timeout=5.0)) != "+OK":
        raise RedisServerError(f"{command}: {reply}")
