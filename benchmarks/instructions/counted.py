"""The process that is counted: `python -m benchmarks.instructions.counted MODE SCENARIO SHIM REDIS [CONTENDER ...]`.

`count` runs under valgrind, and dumps its counts for each contender. `trace` prints the Python functions that a request
enters and the bytecodes that it runs. `where` dumps the counts between any two calls of a function.
"""

import asyncio
import ctypes
import gc
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from benchmarks.instructions.driving import Run, loop
from benchmarks.instructions.scenarios import SCENARIOS, Scenario

_OWN_WARM_UP: Final = 1300  # requests: this package looks for proxies in the first thousand
_TRACED: Final = 5  # requests
_SETTLED: Final = 0.5  # seconds in which a contender finishes what its requests have left to do


def _warm_up(name: str, scenario: Scenario) -> int:
    return max(scenario.warm_up, _OWN_WARM_UP) if name.startswith("ours") else scenario.warm_up


def _count(scenario: Scenario, runs: dict[str, Run], shim: str) -> None:
    counter = ctypes.CDLL(shim)
    for name, run in runs.items():
        run(_warm_up(name, scenario))
    gc.collect()
    gc.freeze()
    gc.disable()
    counter.count_start()
    for name, run in runs.items():
        if scenario.uses_redis:
            loop().run_until_complete(asyncio.sleep(_SETTLED))
        run(scenario.requests)
        counter.count_dump(b"warm")
        for requests in (scenario.requests, 2 * scenario.requests):
            run(requests)
            counter.count_dump(f"{name}|{requests}".encode())
    counter.count_stop()


def _trace(scenario: Scenario, runs: dict[str, Run]) -> dict[str, tuple[float, float]]:
    """Return the functions and the bytecodes of one request, by contender."""
    found: dict[str, tuple[float, float]] = {}
    requests = 64 if scenario.name.startswith("redis-64") else _TRACED
    for name, run in runs.items():
        run(_warm_up(name, scenario))
        (less_functions, less_codes), (functions, codes) = _traced(run, requests), _traced(run, 2 * requests)
        found[name] = ((functions - less_functions) / requests, (codes - less_codes) / requests)
    return found


def _traced(run: Run, requests: int) -> tuple[int, int]:
    functions = codes = 0

    def local(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal codes
        codes += event == "opcode"
        return local

    def called(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal functions
        functions += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    sys.settrace(called)
    run(requests)
    sys.settrace(None)
    return functions, codes


def _where(scenario: Scenario, runs: dict[str, Run], shim: str) -> list[tuple[bool, str]]:
    """Return the calls and returns in the order of the dumps: whether it is a call, and the function."""
    counter = ctypes.PyDLL(shim)
    counter.count_hook.argtypes = [ctypes.py_object]
    ((name, run),) = runs.items()
    run(_warm_up(name, scenario))
    gc.collect()
    gc.freeze()
    gc.disable()
    events: list[Any] = []
    counter.count_start()
    counter.count_hook(events)
    run(1)
    counter.count_on(1)
    run(64 if scenario.name.startswith("redis-64") else 2)
    counter.count_on(0)
    counter.count_stop()
    sys.setprofile(None)
    return [(bool(is_call), f"{code.co_filename}:{code.co_qualname}") for is_call, code in events]


def main(arguments: Sequence[str]) -> None:
    """Run one scenario, and print what was found as the last line."""
    mode, name, shim, redis, *only = arguments
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    scenario = SCENARIOS[name]
    runs = scenario.make(redis)
    if only:
        runs = {one: run for one, run in runs.items() if one in only}
    found: Any = None
    if mode == "count":
        _count(scenario, runs, shim)
    elif mode == "trace":
        found = _trace(scenario, runs)
    else:
        found = _where(scenario, runs, shim)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
