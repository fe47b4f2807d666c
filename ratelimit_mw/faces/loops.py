"""Whether there is an event loop."""

import asyncio


def in_event_loop() -> bool:
    """Whether one runs in this thread, so that nothing may block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
