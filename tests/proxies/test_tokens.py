"""Tests a real Envoy that limits the tokens of a model's answers, as its page configures it.

A request asks with a `hits_addend` of 0, and reports what the answer has used when it has ended, as Envoy AI Gateway
does. There a filter of its own counts tokens; here Envoy reads them from the JSON of the answer.
"""

import http.client
import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from faults.load import settled
from proxies.programs import FENCE, PAGES, found, missing, proxy, served
from redis_servers import RedisServer, free_port

SETTINGS = """
limits = [{limit = "100/day using fixed_window", name = "tokens", key = "header:X-Api-Key", overdraw = true}]
trusted_proxies = ["127.0.0.1"]
"""


class Model(BaseHTTPRequestHandler):
    """Answers POST `/chat/NUMBER` as a model does that uses so many tokens."""

    def do_POST(self) -> None:
        body = json.dumps({"usage": {"total_tokens": int(self.path.rpartition("/")[2])}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def with_tokens(text: str) -> str:
    """Return the configuration of the page with what it prints for tokens in its places."""
    limits, counting = (
        block
        for language, block in FENCE.findall((PAGES / "behind-envoy.md").read_text())
        if language == "yaml" and "tokens" in block
    )
    before, rest = text.split("                  rate_limits:\n")
    _, _, after = rest.partition("          http_filters:\n")
    router = "          - name: envoy.filters.http.router\n"
    filters, _, last = after.partition(router)
    parts = [before, indented(limits, 16), "          http_filters:\n", filters, indented(counting, 10), router, last]
    return "".join(parts)


def indented(block: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in block.splitlines())


@pytest.fixture
def place(model: int, redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Yield the ports of Envoy and of the service."""
    if found("envoy") is None:
        pytest.skip(missing("envoy"))
    redis_server.flush()
    grpc = free_port()
    settings = f'store = "{redis_server.url}"\nstore_timeout = 5\n{SETTINGS}'
    with (
        served(tmp_path, settings, "--grpc", f"127.0.0.1:{grpc}") as (service, _),
        proxy("envoy-grpc", tmp_path, {"app": model, "service": service, "grpc": grpc}, change=with_tokens) as port,
    ):
        yield port, service


def ask(port: int, tokens: int, key: str = "ann") -> tuple[int, int]:
    """Return status and `X-RateLimit-Remaining` of an answer with so many tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/chat/{tokens}", headers={"X-Api-Key": key})
        response = connection.getresponse()
        response.read()
        return response.status, int(response.headers["x-ratelimit-remaining"])
    finally:
        connection.close()


def left(service: int) -> int:
    """Return the tokens that the service has left for a client."""
    body = json.dumps({"path": "/", "headers": {"X-Api-Key": "ann"}, "cost": 0})
    connection = http.client.HTTPConnection("127.0.0.1", service, timeout=60)
    try:
        connection.request("POST", "/v1/peek", body)
        remaining: int = json.loads(connection.getresponse().read())["remaining"]
        return remaining
    finally:
        connection.close()


def test_tokens_are_reported_when_the_answer_ends_and_may_overdraw(place: tuple[int, int]) -> None:
    envoy, service = place
    for tokens, before, after in ((30, 100, 70), (60, 70, 10), (500, 10, 0)):
        assert ask(envoy, tokens) == (200, before)
        assert settled(partial(lambda wanted: left(service) - wanted, after), 60) == 0  # the report follows the answer
    assert ask(envoy, 1) == (429, 0)
    assert ask(envoy, 1, "bob") == (200, 100)
