"""How long takes from a file last under a steady load of several processes: `python -m benchmarks.file_load`.

Each process takes one unit at a time, at set instants, from the buckets of 10,000 clients. It is no row, because it
lasts a minute. A take that begins late, because the one before it was slow, counts from the instant that was set.
`--memory` does the same with a store in the memory of each process: what is slow then is slow because of the machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.machine import machine
from ratelimit_mw import Charge, MemoryStore, SlidingWindowCounter, StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.sqlite import SQLiteStore

_CLIENTS: Final = 10_000
_LIMIT: Final = SlidingWindowCounter(10**9, 3600)
_TIMEOUT: Final = 5.0  # seconds; long, so that slow takes are measured instead of failing
_PATIENCE: Final = 60.0  # seconds until all processes are ready
_SHARES: Final = (0.5, 0.99, 0.999)


def _takes(path: Path | None, rate: float, number: int, ready: Barrier) -> tuple[list[float], int]:
    """Return the durations of `number` takes, in seconds, and how many of them failed."""
    store: Store = MemoryStore() if path is None else SQLiteStore(path, timeout=_TIMEOUT, deny_cache=0)
    ready.wait(_PATIENCE)
    start = time.monotonic()
    durations: list[float] = []
    failed = 0
    for index in range(number):
        due = start + index / rate
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
            due = time.monotonic()  # the system wakes processes late, which is not the store's fault
        try:
            store.take([Charge(f"{{{index * 7919 % _CLIENTS}}}:rule", _LIMIT)])
        except StoreError:
            failed += 1
        durations.append(time.monotonic() - due)
    store.close()
    return durations, failed


def _work(
    path: Path | None, rate: float, number: int, ready: Barrier, results: "Queue[tuple[list[float], int]]"
) -> None:
    results.put(_takes(path, rate, number, ready))


def run(processes: int, rate: float, seconds: float, *, in_memory: bool = False) -> dict[str, float]:
    """Return the numbers of takes, failed takes and takes over 50 ms, and durations in milliseconds."""
    context = get_context("spawn")
    with TemporaryDirectory() as folder:
        results: Queue[tuple[list[float], int]] = context.Queue()
        path = None if in_memory else Path(folder) / "limits.db"
        arguments = (path, rate, round(rate * seconds), context.Barrier(processes), results)
        workers = [context.Process(target=_work, args=arguments) for _ in range(processes)]
        for worker in workers:
            worker.start()
        answers = [results.get(timeout=seconds + 120) for _ in workers]
        for worker in workers:
            worker.join()
    durations = sorted(duration for found, _ in answers for duration in found)
    shares = {f"{100 * share:g} %": round(1000 * durations[int(len(durations) * share)], 3) for share in _SHARES}
    return {
        "takes": len(durations),
        "failed": sum(failed for _, failed in answers),
        "over 50 ms": sum(duration > 0.05 for duration in durations),  # noqa: PLR2004  # the default `store_timeout`
        **shares,
        "longest": round(1000 * durations[-1], 3),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the load, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.file_load", description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rate", type=float, default=500.0, help="takes per second of each process")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory", action="store_true", help="no file: what the machine alone makes slow")
    args = parser.parse_args(words)
    sys.stderr.write(f"{machine()}\n")
    sys.stdout.write(json.dumps(run(args.processes, args.rate, args.seconds, in_memory=args.memory)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
