"""Compares the middleware with a real nginx: the same traffic at the same time, also through nginx's `limit_req`."""

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from redis_servers import free_port
from web.real_servers import APPS
from web_servers import serve_uvicorn

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # where Debian installs it, which is not on every PATH
NGINX = shutil.which("nginx", path=SBIN)
READY_WITHIN = 120.0  # seconds

pytestmark = [
    pytest.mark.skipif(
        NGINX is None,
        reason="no nginx to compare with; type: sudo apt-get install nginx-light (macOS: brew install nginx)",
    ),
]

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    log_format decided '$http_x_key $limit_req_status';
    access_log {folder}/access.log decided;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    limit_req_status 429;
    limit_req_zone $http_x_key zone=burst:1m rate=10r/s;
    limit_req_zone $http_x_key zone=nodelay:1m rate=10r/s;
    limit_req_zone $http_x_key zone=delay:1m rate=10r/s;
    server {{
        listen 127.0.0.1:{port};
        location /burst {{ limit_req zone=burst burst=20; proxy_pass {app}; }}
        location /nodelay {{ limit_req zone=nodelay burst=20 nodelay; proxy_pass {app}; }}
        location /delay {{ limit_req zone=delay burst=20 delay=8; proxy_pass {app}; }}
    }}
}}
"""

# Seconds when requests are sent. They are not close to the time when another one would pass, so that a few milliseconds
# do not matter.
PATTERNS: dict[str, Sequence[float]] = {
    "all at once": [0.0] * 30,
    "slower than the rate": [number * 0.16 for number in range(12)],
    "twice as fast as the rate": [number * 0.05 for number in range(50)],
    "a burst, a pause, and a burst": [0.0] * 18 + [1.05] * 18,
    "in threes": [number // 3 * 0.25 for number in range(36)],
}
PASSED, DELAYED, REJECTED = "PASSED", "DELAYED", "REJECTED"


class Nginx:
    """A process of nginx, with its files in a folder of its own."""

    def __init__(self, folder: Path, app: str, config: str = CONFIG) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "nginx.conf").write_text(config.format(folder=folder, port=self.port, app=app))
        command = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_ready(self) -> None:
        until = time.monotonic() + READY_WITHIN
        while not (self.folder / "nginx.pid").exists() or not self._answers():
            assert self.process.poll() is None, (self.folder / "error.log").read_text()
            assert time.monotonic() < until, "nginx is not ready"
            time.sleep(0.02)

    def _answers(self) -> bool:
        return asyncio.run(_connects(self.port))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def decided(self, key: str, requests: int) -> Counter[str]:
        """Return how often nginx made each decision, by its access log, which it writes after each response."""
        until = time.monotonic() + READY_WITHIN
        while True:
            lines = (self.folder / "access.log").read_text().splitlines()
            found = Counter(line.split()[1] for line in lines if line.startswith(f"{key} "))
            if found.total() >= requests or time.monotonic() > until:
                return found
            time.sleep(0.02)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nginx, int]]:
    """nginx in front of the bare app, and the port of the app behind the middleware."""
    with (
        serve_uvicorn("paced_asgi:bare", APPS, "--no-access-log") as bare,
        serve_uvicorn("paced_asgi:paced", APPS, "--no-access-log", "--loop", "asyncio") as paced,  # uvloop counts in ms
    ):
        nginx = Nginx(tmp_path_factory.mktemp("nginx"), bare.url)
        try:
            nginx.wait_ready()
            yield nginx, int(paced.url.rpartition(":")[2])
        finally:
            nginx.stop()


async def _connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def ask(port: int, path: str, key: str) -> str:
    """Send a request on a new connection, and return its decision. nginx's delays are only in its log."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = time.monotonic()
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Key: {key}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    status = int(answer.split()[1])
    assert status in (200, 429)
    told = re.search(r"x-delay-ms: (\d+)", answer)
    delay = int(told[1]) if told else 0
    assert time.monotonic() - asked >= delay / 1000
    return REJECTED if status == 429 else DELAYED if delay else PASSED


async def run(port: int, path: str, key: str, instants: Sequence[float], start: float) -> Counter[str]:
    async def one(instant: float) -> str:
        await asyncio.sleep(start + instant - asyncio.get_running_loop().time())
        return await ask(port, path, key)

    return Counter(await asyncio.gather(*[one(instant) for instant in instants]))


async def both(nginx: Nginx, port: int, path: str, keys: dict[str, str]) -> dict[str, Counter[str]]:
    """Send the traffic to both, and return the middleware's decisions. nginx's decisions are in its log."""
    start = asyncio.get_running_loop().time() + 0.2
    ours = [run(port, path, keys[name], instants, start) for name, instants in PATTERNS.items()]
    theirs = [run(nginx.port, path, keys[name], instants, start) for name, instants in PATTERNS.items()]
    found = await asyncio.gather(*ours, *theirs)
    return dict(zip(PATTERNS, found, strict=False))


@pytest.mark.parametrize("path", ["/burst", "/nodelay", "/delay"])
def test_middleware_and_nginx_decide_the_same_traffic_alike(servers: tuple[Nginx, int], path: str) -> None:
    nginx, port = servers
    apart: list[object] = []
    for attempt in range(3):  # on a busy machine, one of the two may receive a request tenths of a second later
        keys = {name: f"{path[1:]}-{attempt}-{number}" for number, name in enumerate(PATTERNS)}
        found = asyncio.run(both(nginx, port, path, keys))
        apart = []
        for name, ours in found.items():
            theirs = nginx.decided(keys[name], len(PATTERNS[name]))
            assert ours.total() == theirs.total() == len(PATTERNS[name])
            if max(abs(ours[decided] - theirs[decided]) for decided in (PASSED, DELAYED, REJECTED)) > 1:
                apart.append((name, ours, theirs))
        if not apart:
            break
    assert apart == []
