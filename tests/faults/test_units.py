"""Reservations, charges and settlements lose no unit and count none twice, whichever process or server is killed."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from faults.load import settled
from faults.units_runner import LIMIT, TTL, Client, opened
from profiles import PROOF
from ratelimit_mw.asgi import RateLimitMiddleware
from redis_servers import RedisServer

RUNNER = Path(__file__).with_name("units_runner.py")
NOW = 1_800_000_000.0  # seconds
WORKERS = 3
KILLS = 20 if PROOF else 2  # of all workers
ANSWERS = 60  # that a worker prints before it is killed

pytestmark = pytest.mark.promise(3)


class Killed:
    """What the killed workers printed. `pending`: units that were asked for, without an answer."""

    def __init__(self) -> None:
        self.answered, self.pending, self.open = 0, list[int](), list[str]()

    def read(self, lines: list[str]) -> None:
        asked = 0
        for line in lines:
            if line.startswith("id "):
                self.open.append(line.removeprefix("id "))
            elif line == "ok":
                self.answered, asked = self.answered + asked, 0
            else:
                assert asked == 0, lines
                asked = int(line)
        self.pending.append(asked)

    def possible(self) -> set[int]:
        """Return all numbers of units that may be charged now."""
        return {self.answered + sum(some) for some in product(*((0, one) for one in self.pending))}


def run_and_kill(url: str, seed: str) -> list[str]:
    """Return the lines of a worker that is killed amid its work."""
    command = [sys.executable, str(RUNNER), url, seed, str(NOW)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        lines = [worker.stdout.readline().rstrip() for _ in range(ANSWERS)]
        worker.kill()
        return [*lines, *worker.stdout.read().split("\n")[:-1]]


@pytest.fixture(params=["redis", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "limits.db")
    server: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    return server.url


def test_killed_processes_lose_no_units_and_what_they_reserved_stays_charged(url: str) -> None:
    """Each worker is killed amid a call, which may have had its effect or not; all others count exactly once."""
    killed, used = Killed(), 0
    for number in range(KILLS):
        commands = [asyncio.to_thread(run_and_kill, url, f"{number} {worker}") for worker in range(WORKERS)]
        for lines in run(_gather(commands)):
            killed.read(lines)
        used = run(Client(opened(url, NOW)).used())
        assert used in killed.possible()
        killed.answered, killed.pending = used, []
    assert len(killed.open) > KILLS

    async def end_later() -> tuple[set[int], int]:
        client = Client(opened(url, NOW + TTL))
        statuses = {(await client.call("cancel", id=name)).status_code for name in killed.open}
        return statuses, await client.used()

    assert run(end_later()) == ({404}, used)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def _gather(commands: list[Any]) -> list[Any]:
    return await asyncio.gather(*commands)


@pytest.fixture
def binary(redis_servers: Mapping[str, RedisServer]) -> Path:
    return next(iter(redis_servers.values())).binary


async def reserved(client: Client, *costs: int) -> list[str]:
    return [(await client.call("reserve", **LIMIT, cost=cost)).json()["id"] for cost in costs]


async def ended(client: Client, verb: str, name: str, **more: int) -> int:
    """Return the status of the call, when the store is there again."""
    while (answer := await client.call(verb, id=name, **more)).status_code == 503:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.02)
    return answer.status_code


def test_reservations_and_estimates_outlast_a_server_that_is_killed(binary: Path) -> None:
    """The server keeps each write on disk. A settlement while it is away is lost: the estimate stays charged."""

    async def main(server: RedisServer) -> None:
        store = opened(server.url, NOW)
        client = Client(store)
        names = await reserved(client, 10, 20, 40)
        seen: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["state"]["ratelimit"].verdict.remaining)
            if len(seen) == 1:
                server.kill()
            scope["state"]["ratelimit"].settle(1)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        limits = {"limit": "100/day using fixed_window", "cost": 5, "name": "estimated"}
        limited = Client(store)
        transport: Any = limited._client._transport
        transport.app = RateLimitMiddleware(app, limits=[limits], store=store, key="all", store_timeout=30)
        assert (await limited.call("chat")).status_code == 200
        assert (await client.call("commit", id=names[0], actual=7)).status_code == 503
        refused = (await client.call("reserve", **LIMIT, cost=80)).json()
        assert (refused["allowed"], refused["id"]) == (False, None)
        server.restart()
        assert await ended(client, "commit", names[0], actual=7) == 200
        assert [await ended(client, verb, names[0]) for verb in ("commit", "cancel")] == [409, 409]
        assert await ended(client, "cancel", names[1]) == 200
        assert await client.used() == 7 + 40
        assert (await limited.call("chat")).status_code == 200
        assert seen == [95, 90]

    with RedisServer(binary, "--appendonly", "yes", "--appendfsync", "always") as server:
        run(main(server))


def test_reservations_are_ended_once_on_a_replica_that_is_promoted(binary: Path) -> None:
    async def before(url: str) -> list[str]:
        client = Client(opened(url, NOW))
        names = await reserved(client, 10, 20, 40, 80)
        assert await ended(client, "commit", names[0], actual=3) == 200
        return names

    async def after(url: str, names: list[str]) -> tuple[list[int], int]:
        client = Client(opened(url, NOW))
        ends = [("commit", names[0]), ("cancel", names[1]), ("cancel", names[1]), ("commit", names[2])]
        statuses = [await ended(client, verb, name) for verb, name in ends]
        return statuses, await client.used()

    with RedisServer(binary, "--repl-diskless-sync-delay", "0") as primary, RedisServer(binary) as replica:
        replica.ask(f"REPLICAOF 127.0.0.1 {primary.port}")
        assert not settled(lambda: "master_link_status:up" not in replica.ask("INFO replication"), 60.0)
        names = run(before(primary.url))
        # the replica has what the primary had at the end
        assert not settled(lambda: offset(primary, "master_repl_offset") != offset(replica, "slave_repl_offset"), 60.0)
        primary.kill()
        replica.ask("REPLICAOF NO ONE")
        assert run(after(replica.url, names)) == ([409, 200, 409, 200], 3 + 40 + 80)


def offset(server: RedisServer, name: str) -> int:
    fields = dict(line.partition(":")[::2] for line in server.ask("INFO replication").splitlines())
    return int(fields[name])
