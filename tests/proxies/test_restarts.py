"""Tests that the service decides each request while its processes are replaced behind nginx."""

import re
import signal
from functools import partial
from pathlib import Path

import pytest

from proxies.programs import found, missing, proxy, served
from proxies.test_outages import Load
from proxies.test_proxies import Seen
from web.real_servers import APPS
from web_servers import serve_uvicorn

SETTINGS = """
limits = "{}/day using fixed_window"
trusted_proxies = ["127.0.0.1"]
store = "sqlite://{}/limits.db"
store_timeout = 4.0
on_store_error = "deny"
"""
# A process of the service begins only when this file exists, so that no start is too quick to be noticed.
WAITING = """
import pathlib, time
while not pathlib.Path({!r}).exists():
    time.sleep(0.02)
"""


def is_of(quota: int, seen: Seen) -> bool:
    return f";q={quota};" in seen.fields.get("ratelimit-policy", "")


def used(seen: list[Seen]) -> int:
    """Return the number of requests that were charged, from the quota and what was left at each quota."""
    left: dict[int, int] = {}
    for one in seen:
        quota = int(re.findall(r"q=(\d+)", one.fields["ratelimit-policy"])[0])
        left[quota] = min(left.get(quota, quota), int(re.findall(r"r=(\d+)", one.fields["ratelimit"])[0]))
    return sum(quota - least for quota, least in left.items())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_request_is_decided_while_processes_are_replaced(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found("nginx") is None:
        pytest.skip(missing("nginx"))
    begin = tmp_path / "begin"
    begin.touch()
    (tmp_path / "sitecustomize.py").write_text(WAITING.format(str(begin)))
    with (
        serve_uvicorn("proxied_asgi:bare", APPS, "--no-access-log") as app,
        monkeypatch.context() as patched,
    ):
        patched.setenv("PYTHONPATH", str(tmp_path))
        with served(tmp_path, SETTINGS.format(1_000_000, tmp_path), "--workers", workers) as (service, process):
            ports = {"app": int(app.url.rpartition(":")[2]), "service": service}
            with proxy("nginx", tmp_path, ports) as port:
                load = Load(port, service)
                try:
                    seen = load.until(lambda _: True)
                    for quota in (2_000_000, 3_000_000):
                        begin.unlink()
                        (tmp_path / "limits.toml").write_text(SETTINGS.format(quota, tmp_path))
                        process.send_signal(signal.SIGHUP)
                        seen += load.until(lambda _: True)  # the old process decides until the new one has begun
                        begin.touch()
                        seen += load.until(partial(is_of, quota))
                finally:
                    seen += load.stop()
    assert [one for one in seen if one.status != 200 or "ratelimit" not in one.fields] == []
    assert used(seen) == len(seen)
