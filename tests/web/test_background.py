"""Work of an event loop that outlives its request."""

import asyncio

from ratelimit_mw.background import all_done, keep


def test_work_that_other_work_starts_is_waited_for_too() -> None:
    done: list[str] = []

    async def give_back() -> None:
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        done.append("given back")

    async def renew() -> None:
        await asyncio.sleep(0)
        keep(give_back())
        done.append("renewed")

    async def run() -> list[str]:
        keep(renew())
        await all_done(60)
        return list(done)

    assert asyncio.run(run()) == ["renewed", "given back"]


def test_work_that_never_ends_is_not_waited_for_longer_than_allowed() -> None:
    async def run() -> bool:
        task = keep(asyncio.Event().wait())
        await all_done(0.001)
        await all_done(0)
        ended = task.done()
        task.cancel()
        return ended

    assert not asyncio.run(run())
