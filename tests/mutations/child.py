"""Runs tests with the package that is first on the path, and prints the outcome."""

import signal
import sys
from collections.abc import Sequence

import fakeredis
import pytest
from msgspec import Struct, json

import ratelimit_mw
from mutations.listing import ROOT
from ratelimit_mw import Charge, MemoryStore
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.stores.redis import RedisStore

_LONGEST = 600  # seconds, on a busy machine


class Outcome(Struct, frozen=True):
    """The outcome of the tests of one copy. They passed if `failed` and `error` are empty."""

    package: str  # the file that was imported
    failed: str = ""  # the first failing test
    error: str = ""  # why there is no valid outcome


class First:
    """A plugin that keeps the name of the first failed test, and of the first test with an error."""

    def __init__(self) -> None:
        self.failed = self.error = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure in a test's call is due to the package; a failed fixture may only have found no server."""
        if report.failed and report.when == "call":
            self.failed = self.failed or report.nodeid
        elif report.failed:
            self.error = self.error or f"{report.when} of {report.nodeid} failed"

    @pytest.hookimpl(tryfirst=True)
    def pytest_assertrepr_compare(self) -> list[str]:
        """Compare no large values line by line, only to show why a test failed."""
        return ["not as expected"]


def broken() -> str:
    """Return why the package does not run, or "". A mutation must not be found by that alone."""
    try:
        others = {"ban": Ban(10, 10, ban=10), "calendar_window": CalendarWindow(10, "day")}
        limits = [others.get(name) or kind(10, 10) for name, kind in SCRIPTED.items()]
        for store in (MemoryStore(), RedisStore(fakeredis.FakeRedis(), timeout=5)):
            for limit in limits:
                (decision,) = store.take([Charge("k", limit)])
                store.settle([Charge("k", limit, -1, at=decision.at), Charge("k", limit)])
            store.take([Charge("k", limit) for limit in limits])
            store.close()
    except Exception as error:  # noqa: BLE001  # any error at all
        return f"does not run: {error!r:.300}"
    return ""


def outcome(tests: Sequence[str]) -> Outcome:
    """Run the tests until one fails."""
    package = ratelimit_mw.__file__
    if error := broken():
        return Outcome(package, error=error)
    first = First()
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of a plugin that is imported already
    try:
        # not a Path, which would join two slashes in the id of a test
        code = pytest.main([*options, *[f"{ROOT}/{test}" for test in tests]], plugins=[first])
    except Exception as error:  # noqa: BLE001  # pytest raises errors of objects that are collected after the last test
        return Outcome(package, first.failed, "" if first.failed else f"pytest raises {error!r:.300}")
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        return Outcome(package, error=f"pytest says {code!r}")
    return Outcome(package, first.failed, first.error)


def main(tests: Sequence[str]) -> None:
    """Run the tests until one fails, and print the outcome as the last line."""
    # like Ctrl-C, so that the tests stop the servers that they started
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(_LONGEST)
    sys.stdout.write(f"\n{json.encode(outcome(tests)).decode()}\n")
