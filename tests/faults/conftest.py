"""Fixtures of the fault tests. The slow half runs if TEST_FAULTS is "all"."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.load import Load, OverAsgi, OverWsgi

HERE = Path(__file__).resolve().parent
ALL = os.environ.get("TEST_FAULTS") == "all"
collect_ignore = [] if ALL else ["slow"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all servers but the first in the quick half. `tox -e faults` runs all of them."""
    if ALL:
        return
    later = [*dict.fromkeys(server for item in items if (server := _server_of(item)))][1:]
    others = [item for item in items if _server_of(item) in later and item.path.is_relative_to(HERE)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _server_of(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    name: str | None = call and (call.params.get("redis_server") or call.params.get("redis_cluster"))
    return name


@pytest.fixture(params=[OverAsgi, OverWsgi], ids=["asgi", "wsgi"])
def served(request: pytest.FixtureRequest) -> type[Load]:
    """An integration under load: ASGI with an asyncio store, or WSGI with a store for threads."""
    face: type[Load] = request.param
    return face


@pytest.fixture
def tell(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Report a measured figure at the end of the run."""
    return lambda figure: record_property("fault", f"{request.node.name}: {figure}")


@pytest.fixture
def tell_recovery(tell: Callable[[str], None]) -> Callable[[float], None]:
    """Report the seconds until a recovered store decided again."""
    return lambda seconds: tell(f"the store decided again after {seconds:.2f} s")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each figure. They are read from the test reports, which may come from another process."""
    for report in terminalreporter.stats.get("passed", []):
        for name, line in report.user_properties:
            if name == "fault":
                terminalreporter.write_line(f"fault: {line}")
