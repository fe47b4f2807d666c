"""Applies mutations, each to a copy of the package, and runs the tests that must fail."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec import DecodeError, json

from mutations.child import Outcome
from mutations.listing import PACKAGE, ROOT, Mutation


class Ran(NamedTuple):
    """The outcome of the tests of one copy, with its duration and output."""

    outcome: Outcome
    seconds: float
    output: str  # of the tests

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return not self.outcome.failed and not self.outcome.error

    @property
    def killed(self) -> bool:
        """Whether a test failed, and no error occurred before."""
        return bool(self.outcome.failed) and not self.outcome.error


def run(mutations: Sequence[Mutation], *, jobs: int, say: Callable[[str], object] = print) -> int:
    """Print the outcome of each mutation, and how many were killed.

    Returns 0 if all were killed and the tests pass without mutations, else 1.
    """
    with TemporaryDirectory(prefix="ratelimit-mw-") as folder, ThreadPoolExecutor(jobs) as threads:
        package = _copied(PACKAGE, folder)  # all mutations begin with the same text, even if files are edited meanwhile
        if stale := [f"{mutation}: {problem}" for mutation in mutations if (problem := _problem(mutation, package))]:
            say("\n".join(stale))
            return 1
        tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
        for test, ran in zip(tests, threads.map(lambda test: _tried(package, [test]), tests), strict=True):
            say(f"without a mutation, {test}: {_verdict(ran, 'fails at', 'passes')}")
            if not ran.passed:
                say(ran.output)
                threads.shutdown(cancel_futures=True)
                return 1
        left = []
        tries = threads.map(lambda mutation: _tried(package, mutation.tests, mutation), mutations)
        for mutation, ran in zip(mutations, tries, strict=True):
            say(f"{mutation}: {_verdict(ran, 'killed by', 'SURVIVED')}")
            if ran.outcome.error:
                say(ran.output)
            if not ran.killed:
                left.append(f"not killed: {mutation}")
    say("\n".join([*left, f"{len(mutations) - len(left)} of {len(mutations)} killed"]))
    return 1 if left else 0


def _problem(mutation: Mutation, package: Path) -> str:
    """Return why the mutation cannot be applied, or ""."""
    try:
        mutation.apply(package)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _verdict(ran: Ran, failed: str, passed: str) -> str:
    """Describe the outcome."""
    outcome = ran.outcome
    what = f"{failed} {outcome.failed}" if outcome.failed else passed
    return f"{f'ERROR, {outcome.error}' if outcome.error else what} ({ran.seconds:.1f} s)"


def _copied(package: Path, folder: str) -> Path:
    """Copy the package without compiled files: one of them may look newer than a changed source."""
    return copytree(package, Path(folder) / PACKAGE.name, ignore=ignore_patterns("__pycache__"))


def _tried(package: Path, tests: Sequence[str], mutation: Mutation | None = None) -> Ran:
    """Run tests with a copy of the package, in a separate process and folder."""
    start = time.monotonic()
    with TemporaryDirectory(prefix="ratelimit-mw-") as folder:
        copy = _copied(package, folder)
        if mutation is not None:
            (copy / mutation.file).write_text(mutation.apply(package), "utf-8")
        child = subprocess.run(
            [sys.executable, "-m", "mutations.child", *tests],
            cwd=folder,
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    output, _, last = child.stdout.rstrip().rpartition("\n")
    try:
        outcome = json.decode(last, type=Outcome)
    except DecodeError:
        outcome, output = Outcome("", error=f"exit code {child.returncode}"), child.stdout
    if not outcome.error and Path(outcome.package) != copy / "__init__.py":
        outcome = Outcome(outcome.package, error=f"tested was not the copy, but {outcome.package}")
    return Ran(outcome, time.monotonic() - start, output)


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of a child, in which the copy precedes an installed package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RATELIMIT_MW_")}
    path = os.pathsep.join([folder, str(ROOT / "tests")])
    return kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TEST_PROFILE": "quick"}
