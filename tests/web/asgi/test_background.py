"""Background tasks that outlive their request."""

import asyncio

from ratelimit_mw.core.runtime import drain, spawn_task


def test_drain_waits_for_tasks_started_by_other_tasks() -> None:
    done: list[str] = []

    async def give_back() -> None:
        for _ in range(10):  # turns of the event loop
            await asyncio.sleep(0)
        done.append("given back")

    async def renew() -> None:
        await asyncio.sleep(0)
        spawn_task(give_back())
        done.append("renewed")

    async def run() -> list[str]:
        spawn_task(renew())
        await drain(60)
        return list(done)

    assert asyncio.run(run()) == ["renewed", "given back"]


def test_drain_stops_waiting_at_its_timeout() -> None:
    async def run() -> bool:
        task = spawn_task(asyncio.Event().wait())
        await drain(0.001)
        await drain(0)
        ended = task.done()
        task.cancel()
        return ended

    assert not asyncio.run(run())
