"""Tests that the tutorial for each framework ends in a 429, in an empty folder and a new virtual environment.

The package comes from this checkout, and the packages that it is used with from the package index, so this needs the
network; `tox -e py313` runs it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/tutorial/first-app.md").read_text("utf-8")
TAB = re.compile(r"^:::\{tab-item\} (?P<framework>\w+)\n(?P<text>.*?)^:::$", re.MULTILINE | re.DOTALL)
FRAMEWORKS = ["FastAPI", "Starlette", "Flask", "Django"]
STEP = re.compile(r"^(?:Write `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SERVERS = ("uvicorn", "flask", "gunicorn", "python3 shop.py runserver")
PORT = re.compile(r"(?:(?<=127\.0\.0\.1:)|(?<=--port ))\d+")
MOST = 6  # commands until a request is refused
ACTIVE = "[ ! -d .venv ] || . .venv/bin/activate; "
FIRST_ANSWER = 120.0  # seconds


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


@pytest.fixture
def environment(wheels: Path, port: int) -> dict[str, str]:
    outer = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONSAFEPATH", "PIP_REQUIRE_VIRTUALENV")
    own = {name: value for name, value in os.environ.items() if name not in outer}
    ports = dict.fromkeys(("UVICORN_PORT", "FLASK_RUN_PORT"), str(port))
    python = str(Path(sys.executable).resolve().parent)  # so that python3 is the interpreter of this environment
    # "0" is pip's way to set --no-compile, which saves time
    own |= {"PIP_FIND_LINKS": str(wheels), "PIP_NO_COMPILE": "0", "PATH": f"{python}{os.pathsep}{own['PATH']}"}
    return {**own, **ports}


def of(framework: str) -> str:
    """Return the page as a reader sees it with this tab selected."""
    return TAB.sub(lambda tab: tab["text"] if tab["framework"] == framework else "", PAGE)


def test_each_tab_set_has_all_frameworks() -> None:
    tabs = [tab["framework"] for tab in TAB.finditer(PAGE)]
    assert tabs == FRAMEWORKS * PAGE.count("{tab-set}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tutorial_reaches_a_429(framework: str, tmp_path: Path, port: int, environment: dict[str, str]) -> None:
    commands = 0
    with serving(tmp_path, port, environment) as start:
        for step in STEP.finditer(of(framework)):
            if step["file"]:
                (tmp_path / step["file"]).write_text(step["text"], "utf-8")
            if step["kind"] != "sh":
                continue
            for line in step["text"].splitlines():
                commands += 1
                assert commands <= MOST, line
                command = PORT.sub(str(port), line)
                if command.startswith(SERVERS):
                    start(command)
                elif " 429 " in said(command, tmp_path, environment):
                    return
    pytest.fail(f"no request was refused in {commands} commands")


def said(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command, and return the text that it prints."""
    done = subprocess.run(
        ["/bin/bash", "-c", ACTIVE + command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def serving(folder: Path, port: int, environment: dict[str, str]) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts a server and waits until it listens. Kill the servers at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: str) -> None:
        process = subprocess.Popen(
            ["/bin/bash", "-c", ACTIVE + command], cwd=folder, env=environment, start_new_session=True
        )
        running.append(process)
        deadline = time.monotonic() + FIRST_ANSWER
        while not listens(port):
            assert process.poll() is None, command
            assert time.monotonic() < deadline, command
            time.sleep(0.05)

    try:
        yield start
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
