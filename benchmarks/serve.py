"""Serves an app with uvicorn in a separate process: `python -P -m benchmarks.serve MODULE:NAME ARGUMENT...`.

NAME makes the app from the arguments. The port is printed once the server listens. It stops at the end of the input.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import uvicorn

LOOP = "BENCHMARKED_LOOP"  # the environment variable with the name of uvicorn's event loop


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        print(json.dumps({"port": sockets[0].getsockname()[1]}), flush=True)


def main(made_by: str, arguments: Sequence[str]) -> None:
    """Serve until the input ends."""
    module, _, name = made_by.partition(":")
    app = getattr(import_module(module), name)(*arguments)
    threading.Thread(target=_end, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    _Server(uvicorn.Config(app, log_level="warning", access_log=False, loop=_loop())).run([listener])


def _loop() -> Any:
    """Return the name of the event loop that uvicorn uses."""
    return os.environ.get(LOOP, "auto")


def _end() -> None:
    sys.stdin.read()
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
