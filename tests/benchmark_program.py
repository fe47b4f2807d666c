"""The benchmark program, run as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ratelimit_mw

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ratelimit_mw.__file__).parent
SMALL = ("--rounds", "2", "--calls", "20")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # the package under test goes before the root, where a checkout of it lies beside `benchmarks`
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


def row(output: str, name: str) -> list[str]:
    (line,) = [line.split() for line in output.splitlines() if line.startswith(f"{name} ")]
    return line


def written(path: Path) -> dict[str, dict[str, Any]]:
    return {one["row"]: one for one in json.loads(path.read_text())["rows"]}
