"""A helper that waits for turns of the event loop."""

import asyncio


async def turns(number: int) -> None:
    """Wait for this number of turns of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)
