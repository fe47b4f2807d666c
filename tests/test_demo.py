"""`python -m ratelimit_mw demo --once`, as the README starts it."""

import re
import subprocess
import sys

from redis_servers import RedisServer


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ratelimit_mw", "demo", "--once", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rows(output: str) -> list[tuple[str, ...]]:
    """(status, remaining, Retry-After) of each call."""
    return re.findall(r"^ +\d+ +(\d+) +(\d+) +(\S+)$", output, re.MULTILINE)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(done.stdout)
    assert found[:5] == [("200", str(left), "-") for left in (4, 3, 2, 1, 0)]
    assert [(status, left) for status, left, _ in found[5:]] == [("429", "0")] * 3
    assert all(1 <= int(retry_after) <= 10 for _, _, retry_after in found[5:])


def test_on_memory() -> None:
    check(demo())


def test_on_redis(redis_server: RedisServer) -> None:
    check(demo("--store", redis_server.url))


def test_a_wrong_store_ends_it_with_the_reason() -> None:
    done = demo("--store", "redi://localhost")
    assert done.returncode == 1
    assert "store: found the scheme 'redi'" in done.stderr


def test_a_port_in_use_ends_it_with_the_reason(redis_server: RedisServer) -> None:
    done = demo("--port", str(redis_server.port))
    assert done.returncode == 1
    assert f"--port {redis_server.port}" in done.stderr
