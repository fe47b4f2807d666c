"""Fuzzes the parsers with atheris, which searches for input that reaches new code: `tox -e atheris`.

Each target has a process of its own, for `--seconds`. The exit code is 1 if a target fails; its input is printed,
and kept as the file that atheris names.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

LONGEST = 4096  # bytes


def run_one(name: str, seconds: int) -> None:
    """Fuzz one target; ends the process."""
    atheris: Any = import_module(
        "atheris"
    )  # not installed where types are checked; instruments the imports that follow
    with atheris.instrument_imports(include=["ratelimit_mw", "parsers.targets"]):
        from parsers.targets import SEEDS, TARGETS  # noqa: PLC0415

    corpus = Path(tempfile.mkdtemp(prefix="ratelimit-mw-corpus-"))
    for number, seed in enumerate(SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=10", f"-artifact_prefix={corpus}-"]
    atheris.Setup([sys.argv[0], str(corpus), *options], TARGETS[name])
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> int:
    """Fuzz all targets, or the one that `--target` names."""
    parser = argparse.ArgumentParser(prog="python -m parsers", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (%(default)s)")
    parser.add_argument("--target", help="one of them, in this process")
    given = parser.parse_args(arguments)
    if given.target:
        run_one(given.target, given.seconds)
    found = []
    for name in ("notation", "lists", "addresses", "paths"):
        sys.stdout.write(f"{name}, {given.seconds} s\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "parsers", "--target", name, "--seconds", str(given.seconds)]
        if subprocess.run(command, check=False).returncode:
            found.append(name)
    sys.stdout.write(f"broken: {', '.join(found)}\n" if found else "all of them hold\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
