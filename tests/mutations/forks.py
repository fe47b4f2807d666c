"""Imports what most tests import, once, and forks a process for each run of tests."""

import gc
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from msgspec import Struct, json

# Everything but the package, which is another copy in each process, and what patches or is configured when imported.
_IMPORTED = [
    "django.core.handlers.asgi",
    "django.core.handlers.wsgi",
    "django.test",
    "fakeredis",
    "fastapi",
    "flask",
    "httpx",
    "hypothesis.stateful",
    "hypothesis.strategies",
    "pytest",
    "redis.asyncio.cluster",
    "starlette.applications",
    "werkzeug.test",
]


class Order(Struct, frozen=True):
    """A run of tests: the folder of the copy, which gets the output, and the tests."""

    folder: str
    tests: tuple[str, ...]


def main() -> None:
    """Run the tests of each order, a line of standard input; answer with the exit code."""
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # no process has to look through these objects, and copy their pages
    for line in sys.stdin:
        order = json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            _run(order)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(order: Order) -> None:
    """Run the tests, with the copy first on the path, and exit."""
    code = 1
    try:
        with Path(order.folder, "output").open("wb") as output, Path(os.devnull).open("rb") as nothing:
            for number, file in enumerate([nothing, output, output]):
                os.dup2(file.fileno(), number)
        os.chdir(order.folder)
        sys.path.insert(0, order.folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [order.folder, os.environ["PYTHONPATH"]]
        )  # of programs that tests start
        import_module("mutations.child").main(order.tests)
        code = 0
    except BaseException:  # noqa: BLE001  # this process is not to answer the next order
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # so that no thread of a failed test prints after the last line


if __name__ == "__main__":
    main()
