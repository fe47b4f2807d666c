"""Applies mutations, each to a copy of the package, and runs the tests that must fail."""

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_AT_ONCE = 20  # tests in one process

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


def run(
    mutations: Sequence[Mutation],
    *,
    jobs: int,
    say: Callable[[str], object] = print,
    killers: dict[str, str] | None = None,
) -> int:
    """Print the outcome of each mutation, and how many were killed.

    Returns 0 if all were killed, and the tests that killed them pass without mutations, else 1. `killers` has the test
    that killed a mutation the last time, by its name: it runs first. The dict is updated.
    """
    killers = {} if killers is None else killers
    with TemporaryDirectory(prefix="ratelimit-mw-") as folder:
        package = _compiled(folder)  # all mutations begin with the same text, even if files are edited meanwhile
        if stale := [f"{mutation}: {problem}" for mutation in mutations if (problem := _problem(mutation, package))]:
            say("\n".join(stale))
            return 1
        with _testers(package, jobs) as tried, ThreadPoolExecutor(jobs) as threads:
            left = []
            tries = threads.map(lambda mutation: _killed(mutation, killers, tried), mutations)
            for mutation, ran in zip(mutations, tries, strict=True):
                say(f"{mutation}: {_verdict(ran)}")
                if ran.outcome.error:
                    say(ran.output)
                if ran.killed:
                    killers[mutation.name] = ran.outcome.failed
                else:
                    left.append(mutation)
            tests = sorted({killers[mutation.name] for mutation in mutations if mutation not in left})
            groups = [tests[start : start + _AT_ONCE] for start in range(0, len(tests), _AT_ONCE)]
            for ran in threads.map(lambda group: tried(group, None), groups):
                if not ran.passed:
                    say(f"without a mutation: {ran.outcome.failed or ran.outcome.error}\n{ran.output}")
                    return 1
    lines = [f"not killed: {mutation}" for mutation in left]
    say("\n".join([*lines, f"{len(mutations) - len(left)} of {len(mutations)} killed"]))
    return 1 if left else 0


def _killed(mutation: Mutation, killers: Mapping[str, str], tried: Try) -> Ran:
    """Run the tests of a mutation, the one that killed it the last time before the others."""
    if mutation.name in killers:
        ran = tried([killers[mutation.name]], mutation)
        if ran.killed:
            return ran
    return tried(mutation.tests, mutation)


def _problem(mutation: Mutation, package: Path) -> str:
    """Return why the mutation cannot be applied, or ""."""
    try:
        mutation.apply(package)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _verdict(ran: Ran) -> str:
    """Describe the outcome."""
    outcome = ran.outcome
    what = f"killed by {outcome.failed}" if outcome.failed else "SURVIVED"
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
    path = str(ROOT / "tests")
    return kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TEST_PROFILE": "mutation", "TEST_REDIS": "one"}
