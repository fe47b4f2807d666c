"""Tests that clients behind nginx see only the effects of `on_store_error` while Redis is stopped, killed and
restarted.
"""

import collections
import http.client
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from proxies.programs import found, missing, proxy, served
from proxies.test_proxies import Seen, ask
from redis_servers import RedisServer
from web.real_servers import APPS
from web_servers import serve_uvicorn

WITHIN = 60.0  # seconds until clients must see a change
CLIENTS = 4  # running concurrently


class Load:
    """Clients that send requests one after another to nginx, and their responses. `service`: the port that decides."""

    def __init__(self, port: int, service: int) -> None:
        self._port, self._service = port, service
        self._seen, self._ended = collections.deque[Seen](), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._seen.append(ask("nginx", self._port, "GET", "/x"))
            self._ended.wait(0.01)

    def until(self, is_wanted: Callable[[Seen], bool], source: str | None = None) -> list[Seen]:
        """Return all responses up to now, after the last twenty in a row were as wanted, and this source of decisions
        has made twenty more.
        """
        until, seen, wanted = time.monotonic() + WITHIN, list[Seen](), 0
        enough = 0 if source is None else decisions(self._service, source) + 20
        while wanted < 20 or (source is not None and decisions(self._service, source) < enough):
            assert time.monotonic() < until, seen[-3:]
            while self._seen:
                seen.append(self._seen.popleft())
                wanted = wanted + 1 if is_wanted(seen[-1]) else 0
            time.sleep(0.02)
        return seen

    def stop(self) -> list[Seen]:
        """End the clients, and return the responses since the last call of `until`."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return list(self._seen)


def decisions(service: int, source: str) -> int:
    """Return how many decisions of this source the service reports at `/metrics`."""
    connection = http.client.HTTPConnection("127.0.0.1", service, timeout=WITHIN)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    pattern = rf'^ratelimit_requests_total{{.*source="{source}".*}} (\S+)$'
    return sum(int(float(count)) for count in re.findall(pattern, text, re.MULTILINE))


def counted(seen: Seen) -> bool:
    return seen.status == 200 and "ratelimit" in seen.fields


AWAY: Mapping[str, tuple[Callable[[Seen], bool], str]] = {  # the responses without Redis, and the source of decisions
    "deny": (lambda seen: seen.status == 503, "denied_on_error"),
    "allow": (lambda seen: seen.status == 200 and "ratelimit" not in seen.fields, "allowed_on_error"),
    "local": (counted, "local"),
}


@pytest.mark.parametrize("mode", ["deny", "allow", "local"])
def test_clients_see_only_on_store_error_while_redis_fails(
    mode: str, redis_servers: Mapping[str, RedisServer], tmp_path: Path
) -> None:
    if found("nginx") is None:
        pytest.skip(missing("nginx"))
    binary = next(iter(redis_servers.values())).binary
    with RedisServer(binary) as redis, serve_uvicorn("proxied_asgi:bare", APPS, "--no-access-log") as app:
        settings = (
            f'limits = "1000000/day"\ntrusted_proxies = ["127.0.0.1"]\nstore = "{redis.url}"\n'
            f'store_timeout = 1.0\non_store_error = "{mode}"\nmetrics = true\n'
        )
        ports = {"app": int(app.url.rpartition(":")[2])}
        with (
            served(tmp_path, settings) as (service, _),
            proxy("nginx", tmp_path, {**ports, "service": service}) as port,
        ):
            load = Load(port, service)
            try:
                seen = load.until(counted, "store")
                redis.pause()
                seen += load.until(*AWAY[mode])
                redis.resume()
                seen += load.until(counted, "store")
                redis.kill()
                seen += load.until(*AWAY[mode])
                redis.restart()
                seen += load.until(counted, "store")
            finally:
                load.stop()
    statuses = {one.status for one in seen}
    assert statuses <= ({200, 503} if mode == "deny" else {200})
    assert all(one.fields["retry-after"] == "1" for one in seen if one.status == 503)
