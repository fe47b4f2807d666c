"""Runs the benchmark program as a user runs it."""

import io
import json
import os
import shutil
import subprocess
import sys
import traceback
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ratelimit_mw

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ratelimit_mw.__file__).parent
WRK = """
import json, sys, time
from http.client import HTTPConnection
from urllib.parse import urlsplit

url = urlsplit(sys.argv[-1])
started = time.perf_counter()
statuses = []
connection = HTTPConnection(url.hostname, url.port)
for _ in range(200):
    connection.request("GET", url.path)
    response = connection.getresponse()
    response.read()
    statuses.append(response.status)
refused = sum(status != 200 for status in statuses)
microseconds = round((time.perf_counter() - started) * 1e6)
print(json.dumps({"microseconds": microseconds, "requests": 200, "refused": refused, "failed": 0}))
"""
SMALL = ("--rounds", "2", "--calls", "20")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # the tested package goes before the root, because a checkout has another copy of it beside `benchmarks`
    path = os.pathsep.join([str(PACKAGE.parent), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def run_here(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Do the same in this process, which has imported the program: for runs whose result is not the process itself."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))  # at the end, see `run`
    from benchmarks import __main__ as program  # noqa: PLC0415  # it is found only now
    from benchmarks.rows import ROWS  # noqa: PLC0415  # as above

    code: int | str | None = 0
    with (
        chdir(folder),
        patch.dict(os.environ, environment),
        patch.object(program, "ROWS", [*ROWS]),  # a program of a test replaces them
        patch.object(sys, "argv", [arguments[0], *arguments[2:]]),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        warnings.catch_warnings(action="default"),  # those of other libraries are no errors in the program
    ):
        try:
            if arguments[:2] == ("-m", "benchmarks"):
                code = program.main(arguments[2:])
            else:
                exec(arguments[1], {"__name__": "__main__"})  # noqa: S102  # a program of the test
        except SystemExit as end:
            code = end.code
        except Exception:  # noqa: BLE001  # as at the end of a process
            traceback.print_exc()
            code = 1
    return subprocess.CompletedProcess(arguments, int(code or 0), out.getvalue(), err.getvalue())


def put_wrk(folder: Path) -> None:
    """Put a `wrk` into the folder: the installed one, or a program that sends a few requests and reports them."""
    program = folder / "wrk"
    if installed := shutil.which("wrk"):
        program.symlink_to(installed)
    else:
        program.write_text(f"#!{sys.executable}\n{WRK}")
        program.chmod(0o755)


def row(output: str, name: str) -> list[str]:
    (line,) = [line.split() for line in output.splitlines() if line.startswith(f"{name} ")]
    return line


def written(path: Path) -> dict[str, dict[str, Any]]:
    return {one["row"]: one for one in json.loads(path.read_text())["rows"]}
