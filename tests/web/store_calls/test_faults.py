"""Tests that each request is answered as on_store_error specifies while Redis is frozen, stopped or absent."""

import socket
import time
from collections.abc import Iterable
from typing import Any, Literal

import pytest

from redis_servers import RedisServer
from web.serving import Answer, Send, Serving, over_asgi, over_wsgi

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis]

Mode = Literal["allow", "deny", "local"]

IN_TIME = 0.2  # seconds: more than the default, so that only the fault makes a request late
BACK_WITHIN = 60.0  # seconds
ANSWERS: dict[Mode, list[Answer]] = {
    "allow": [(200, "allowed_on_error", "")] * 3,
    "deny": [(503, "", "")] * 3,
    "local": [(200, "local", f'"default";r={left}') for left in (999, 998, 997)],
}


def without_seconds(answers: Iterable[Answer]) -> list[Answer]:
    """Return the answers without the seconds of RateLimit, which pass while a busy machine answers."""
    return [(status, source, state.partition(";t=")[0]) for status, source, state in answers]


@pytest.fixture(params=[over_asgi, over_wsgi], ids=["asgi", "wsgi"])
def serving(request: pytest.FixtureRequest) -> Serving:
    chosen: Serving = request.param
    return chosen


def until_the_store_answers(send: Send) -> Answer:
    """Send requests until the store itself decides one, and return the response."""
    deadline = time.monotonic() + BACK_WITHIN
    while time.monotonic() < deadline:
        answer = send()
        if answer[1] == "store":
            return answer
        time.sleep(0.02)
    raise AssertionError(answer)


@pytest.mark.parametrize("mode", ANSWERS)
@pytest.mark.parametrize("fault", ["frozen", "ended"])
def test_on_store_error_decides_until_the_store_recovers(
    mode: Mode, fault: str, serving: Serving, redis_server: RedisServer
) -> None:
    settings = {"limits": "1000/hour", "store": redis_server.url, "on_store_error": mode, "store_timeout": IN_TIME}
    with serving(**settings) as send:
        assert until_the_store_answers(send)[0] == 200
        if fault == "frozen":
            redis_server.pause()
        else:
            redis_server.kill()
        assert without_seconds(send() for _ in range(3)) == ANSWERS[mode]
        if fault == "frozen":
            redis_server.resume()
        else:
            redis_server.restart()
        assert until_the_store_answers(send)[0] == 200


def test_local_mode_enforces_limits_until_the_store_recovers(serving: Serving, redis_server: RedisServer) -> None:
    redis_server.kill()
    with serving(limits="3/hour", store=redis_server.url) as send:
        assert [send()[:2] for _ in range(5)] == [(200, "local")] * 3 + [(429, "")] * 2
        redis_server.restart()
        assert until_the_store_answers(send)[0] == 200


def test_flushed_scripts_and_data_fail_no_request(serving: Serving, redis_server: RedisServer) -> None:
    with serving(limits="1000/hour", store=redis_server.url, store_timeout=2.0) as send:
        assert send()[:2] == (200, "store")
        for command in ("SCRIPT FLUSH", "FLUSHALL"):
            assert redis_server.ask(command) == "+OK"
            assert send()[:2] == (200, "store")


def test_on_store_error_decides_while_redis_is_out_of_memory(serving: Serving, redis_server: RedisServer) -> None:
    settings: dict[str, Any] = {"limits": "1000/hour", "on_store_error": "deny", "store_timeout": 2.0}
    with RedisServer(redis_server.binary) as full, serving(store=full.url, **settings) as send:
        assert send()[:2] == (200, "store")
        assert full.ask("CONFIG SET maxmemory 1") == "+OK"
        assert [send()[0] for _ in range(2)] == [503, 503]
        assert full.ask("CONFIG SET maxmemory 0") == "+OK"
        assert until_the_store_answers(send)[0] == 200


@pytest.mark.parametrize("mode", ANSWERS)
def test_on_store_error_decides_if_connections_are_refused(mode: Mode, serving: Serving) -> None:
    with socket.socket() as taken:  # bound, but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}"
        with serving(limits="1000/hour", store=url, on_store_error=mode) as send:
            assert without_seconds(send() for _ in range(3)) == ANSWERS[mode]


@pytest.mark.parametrize("mode", ANSWERS)
def test_on_store_error_decides_if_redis_never_replies(mode: Mode, serving: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects, but no server accepts
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with serving(limits="1000/hour", store=url, on_store_error=mode) as send:
            assert without_seconds(send() for _ in range(3)) == ANSWERS[mode]
