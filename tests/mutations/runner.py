"""Applies mutations, each to a copy of the package, and runs the tests that must fail."""

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec import DecodeError, json

from mutations.child import Outcome
from mutations.forks import Order
from mutations.listing import PACKAGE, ROOT, Mutation

Try = Callable[[Sequence[str], Mutation | None], "Ran"]


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
    with TemporaryDirectory(prefix="ratelimit-mw-") as folder:
        package = _compiled(folder)  # all mutations begin with the same text, even if files are edited meanwhile
        if stale := [f"{mutation}: {problem}" for mutation in mutations if (problem := _problem(mutation, package))]:
            say("\n".join(stale))
            return 1
        with _testers(package, jobs) as tried, ThreadPoolExecutor(jobs) as threads:
            return _run(mutations, tried, threads, say)


def _run(mutations: Sequence[Mutation], tried: Try, threads: ThreadPoolExecutor, say: Callable[[str], object]) -> int:
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    for test, ran in zip(tests, threads.map(lambda test: tried([test], None), tests), strict=True):
        say(f"without a mutation, {test}: {_verdict(ran, 'fails at', 'passes')}")
        if not ran.passed:
            say(ran.output)
            threads.shutdown(cancel_futures=True)
            return 1
    left = []
    tries = threads.map(lambda mutation: tried(mutation.tests, mutation), mutations)
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


def _compiled(folder: str) -> Path:
    """Copy the package, and compile it so that Python notices a changed source whatever its time."""
    ignored = ignore_patterns("__pycache__")
    copy = copytree(PACKAGE, Path(folder) / PACKAGE.name, ignore=ignored)
    compileall.compile_dir(copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return copy


@contextmanager
def _testers(package: Path, jobs: int) -> Iterator[Try]:
    """Return a function that runs tests, in several threads at once."""
    testers = [_Tester(package) for _ in range(jobs)]
    free: SimpleQueue[_Tester] = SimpleQueue()
    for tester in testers:
        free.put(tester)

    def tried(tests: Sequence[str], mutation: Mutation | None) -> Ran:
        tester = free.get()
        try:
            return tester.run(tests, mutation)
        finally:
            free.put(tester)

    yield tried
    for tester in testers:
        tester.close()


class _Tester:
    """Runs tests with a copy of the package, each time in a new process and folder."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mutations.forks"],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, tests: Sequence[str], mutation: Mutation | None) -> Ran:
        """Run tests with the mutation, if there is one. Only one thread may call it at a time."""
        start = time.monotonic()
        with TemporaryDirectory(prefix="ratelimit-mw-") as folder:
            copy = copytree(self._package, Path(folder) / PACKAGE.name)
            if mutation is not None:
                (copy / mutation.file).write_text(mutation.apply(self._package), "utf-8")
            code = self._asked(Order(folder, tuple(tests)))
            printed = Path(folder, "output").read_text("utf-8", "replace")
        output, _, last = printed.rstrip().rpartition("\n")
        try:
            outcome = json.decode(last, type=Outcome)
        except DecodeError:
            outcome, output = Outcome("", error=f"exit code {code}"), printed
        if not outcome.error and Path(outcome.package) != copy / "__init__.py":
            outcome = Outcome(outcome.package, error=f"tested was not the copy, but {outcome.package}")
        return Ran(outcome, time.monotonic() - start, output)

    def _asked(self, order: Order) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(json.encode(order) + b"\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        """Stop the process that forks."""
        self._process.communicate()


def _environment() -> dict[str, str]:
    """Return the environment of the tests. Python keeps what it has compiled of them."""
    unset = ("RATELIMIT_MW_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    return kept | {"PYTHONPATH": str(ROOT / "tests"), "PYTHONSAFEPATH": "1", "TEST_PROFILE": "mutation"}
