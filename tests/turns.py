"""Turns of the event loop."""

import asyncio


async def turns(number: int) -> None:
    """Let the loop go on for so many."""
    for _ in range(number):
        await asyncio.sleep(0)
