"""Tests `python -m ratelimit_mw demo`, which the README runs."""

import re
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from redis_servers import RedisServer

ROOT = Path(__file__).resolve().parent.parent
DEMO = [sys.executable, "-m", "ratelimit_mw", "demo"]
ENDS_WITHIN = 300.0  # seconds, on a busy machine
ADMITTED, REFUSED = "200", "429"
WITHOUT_THE_STORE = (  # the demo prints this on a machine that is too busy
    "\nThe store did not answer in time, so this process counted some of these calls (on_store_error).\n"
)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=ENDS_WITHIN, check=False)


def rows(output: str) -> list[tuple[str, ...]]:
    """Return (status, remaining, Retry-After) of each call."""
    return re.findall(r"^ +\d+ +(\d+) +(\d+) +(\S+)$", output, re.MULTILINE)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    *calls, after = rows(done.stdout)
    assert calls[0] == (ADMITTED, "4", "-")
    assert [status for status, *_ in calls[:5]] == [ADMITTED] * 5
    refused = [call for call in calls if call[0] == REFUSED]
    assert [remaining for _, remaining, _ in refused] == ["0"] * 3
    assert all(1 <= int(retry_after) <= 5 for *_, retry_after in refused)
    assert f"\nWaiting {calls[-1][2]} s (the last Retry-After) ...\n" in done.stdout
    assert after[0] == ADMITTED
    assert done.stdout.endswith("\nThe client waited for the time in Retry-After, and was admitted.\n")


def shape(output: str) -> list[str]:
    """Return the lines without their numbers, and without the calls: a slow machine makes more of them."""
    return [re.sub(r"\d+", "N", line) for line in output.splitlines() if not re.match(r" +\d", line)]


def test_demo_on_memory_prints_the_lines_of_the_screenshot() -> None:
    done = demo()
    check(done)
    screenshot = ET.parse(ROOT / "docs/_static/demo.svg").getroot()  # noqa: S314  # a trusted file
    _, *lines = ["".join(text.itertext()) for text in screenshot.iterfind("{http://www.w3.org/2000/svg}text")]
    assert shape(done.stdout.replace(WITHOUT_THE_STORE, "")) == shape("\n".join(lines))


@pytest.mark.one_redis
def test_demo_runs_on_redis(redis_server: RedisServer) -> None:
    check(demo("--store", redis_server.url))


def test_demo_keeps_serving_with_the_serve_option() -> None:
    # a job in the background of a shell ignores SIGINT, and so would the demo
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*DEMO, "--serve"], stdout=subprocess.PIPE, text=True) as running:
        signal.signal(signal.SIGINT, before)
        assert running.stdout is not None
        try:
            lines = (re.match(r"Still serving http://(\S+)/,", line) for line in running.stdout)
            address = next(found[1] for found in lines if found)
            with closing(HTTPConnection(address, timeout=ENDS_WITHIN)) as connection:
                connection.request("GET", "/")
                with connection.getresponse() as answer:
                    assert answer.status in (200, 429)
            running.send_signal(signal.SIGINT)
            assert running.wait(ENDS_WITHIN) == 0
        finally:
            running.kill()


def test_demo_rejects_an_invalid_store_url() -> None:
    done = demo("--store", "redi://localhost")
    assert done.returncode == 1
    assert "store: got the scheme 'redi'" in done.stderr


@pytest.mark.one_redis
def test_demo_reports_a_port_in_use(redis_server: RedisServer) -> None:
    done = demo("--port", str(redis_server.port))
    assert done.returncode == 1
    assert f"--port {redis_server.port}" in done.stderr
