"""Runs a scenario under callgrind, and reads what it has counted."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.lab import Missing

_SHIM: Final = Path(__file__).with_name("shim.c")
_CACHE: Final = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")
_ALLOCATORS: Final = {"_PyObject_Malloc", "_PyObject_Calloc", "_PyObject_Realloc"}
_FUNCTION: Final = re.compile(r"c?fn[a-z]*=\((\d+)\)(?: (.*))?")
_EVENTS: Final = {  # columns of the simulated cache: the events of callgrind
    "data refs": ("Dr", "Dw"),
    "L1i miss": ("I1mr",),
    "L1d miss": ("D1mr", "D1mw"),
    "L2 miss": ("ILmr", "DLmr", "DLmw"),
}
Counts = dict[str, float]  # of one request, by the name of what is counted


class Dump(NamedTuple):
    """What was counted since the dump before: events by their names, and calls of Python's allocators."""

    label: str
    events: dict[str, int]
    allocations: int


class Callgrind:
    """Runs scenarios in a folder. Raises `Missing` if a program or a header is not there.

    `redis`: the URL of a server. `cache`: simulate a cache, too, which takes twice as long.
    """

    def __init__(self, folder: Path, redis: str, *, cache: bool = False) -> None:
        for program in ("valgrind", "gcc"):
            if shutil.which(program) is None:
                raise Missing(f"{program}: not on PATH (apt-get install valgrind gcc)")
        self._folder, self._redis, self._cache = folder, redis, cache
        self._shim = folder / "shim.so"
        headers = Path(sysconfig.get_paths()["include"])
        python = ["-DWITH_PYTHON", f"-I{headers}"] if (headers / "Python.h").exists() else []
        command = ["gcc", "-O1", "-shared", "-fPIC", *python, str(_SHIM), "-o", str(self._shim)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"shim.c: gcc did not compile it, which needs the headers of valgrind\n{done.stderr}")

    def counted(self, scenario: str) -> dict[str, Counts]:
        """Return the instructions and the allocations of one request, by contender, the bare app among them."""
        self._run("count", scenario)
        runs: dict[str, dict[int, Dump]] = {}
        for dump in self._dumps("count", scenario):
            name, bar, requests = dump.label.rpartition("|")
            if bar:
                runs.setdefault(name, {})[int(requests)] = dump
        return {name: _per_request(by_requests) for name, by_requests in runs.items()}

    def traced(self, scenario: str) -> dict[str, Counts]:
        """Return the functions and the bytecodes of one request, by contender."""
        found = json.loads(self._run("trace", scenario))
        return {name: {"functions": functions, "bytecodes": codes} for name, (functions, codes) in found.items()}

    def where(self, scenario: str, contender: str) -> list[tuple[str, float, float]]:
        """Return functions with their own instructions and their calls in one request, the dearest first."""
        events = json.loads(self._run("where", scenario, contender))
        costs = [dump.events.get("Ir", 0) for dump in self._dumps("where", scenario)][: len(events)]
        stack, own, calls = ["the scenario"], dict[str, int](), dict[str, int]()
        for (is_call, function), cost in zip(events, costs, strict=True):
            own[stack[-1]] = own.get(stack[-1], 0) + cost
            if is_call:
                stack.append(function)
                calls[function] = calls.get(function, 0) + 1
            elif len(stack) > 1:
                stack.pop()
        made = [
            count for function, count in calls.items() if function.endswith(("driving.py:scope", "driving.py:environ"))
        ]
        requests = max(1, *made, 1)
        rows = [(function, cost / requests, calls.get(function, 0) / requests) for function, cost in own.items()]
        return sorted(rows, key=lambda row: -row[1])

    def _run(self, mode: str, scenario: str, *only: str) -> str:
        """Run a scenario. Returns the last line of its output."""
        module = "benchmarks.instructions.counted"
        command = [sys.executable, "-m", module, mode, scenario, str(self._shim), self._redis, *only]
        if mode != "trace":
            cache = _CACHE if self._cache and mode == "count" else ()
            out = f"--callgrind-out-file={self._folder / f'{scenario}.{mode}'}"
            command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", *cache, out, *command]
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{mode} of {scenario}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout.splitlines()[-1]

    def _dumps(self, mode: str, scenario: str) -> Iterator[Dump]:
        paths = self._folder.glob(f"{scenario}.{mode}.*")
        yield from (_read(path) for path in sorted(paths, key=lambda path: int(path.suffix[1:])))


def _per_request(by_requests: dict[int, Dump]) -> Counts:
    (fewer, less), (more, dump) = sorted(by_requests.items())
    events = {name: (count - less.events[name]) / (more - fewer) for name, count in dump.events.items()}
    found = {"instructions": events["Ir"], "allocs": (dump.allocations - less.allocations) / (more - fewer)}
    for column, names in _EVENTS.items():
        if names[0] in events:
            found[column] = sum(events[name] for name in names)
    return found


def _read(path: Path) -> Dump:
    label, names, total, allocations = "", list[str](), list[int](), 0
    functions: dict[str, str] = {}
    counts = False  # the next line of calls is of an allocator
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("desc: Trigger:"):
            label = line.split(":", 2)[2].strip().removeprefix("Client Request:").strip()
        elif line.startswith("events:"):
            names = line.split()[1:]
        elif line.startswith(("summary:", "totals:")):
            total = _numbers(line.split()[1:]) or total
        elif found := _FUNCTION.match(line):
            number, name = found.groups()
            if name:
                functions[number] = name.partition("'")[0]
            if line.startswith("c"):
                counts = functions.get(number) in _ALLOCATORS
        elif line.startswith("calls=") and counts:
            allocations += int(line.removeprefix("calls=").split()[0])
            counts = False
    return Dump(label, dict(zip(names, total, strict=False)), allocations)


def _numbers(words: Sequence[str]) -> list[int]:
    return [int(word) for word in words]
