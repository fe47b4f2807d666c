"""The fixture `ratelimit` and `freeze` let a test control the time of an app's stores."""

import asyncio
import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from flask import Flask
from redis import Redis

from ratelimit_mw import AsyncLimiter, Charge, ConfigError, Decision, Limiter, MemoryStore, StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, Control, RecordingStore, freeze
from ratelimit_mw.wsgi import RateLimitMiddleware
from redis_cluster import RedisCluster

LIMIT = "2/hour"
PAGE = Path(__file__).resolve().parent.parent / "docs/how-to/testing.md"


def allowed(limiter: Limiter, count: int = 1, limit: str = LIMIT) -> list[bool]:
    return [limiter.hit(limit, "k").allowed for _ in range(count)]


def test_freeze_stops_time_until_it_is_advanced(ratelimit: Control) -> None:
    limiter = Limiter()
    ratelimit.freeze()
    assert allowed(limiter, 3, "2/10 seconds using token_bucket") == [True, True, False]
    assert limiter.hit("2/10 seconds using token_bucket", "k").retry_after == 5.0
    ratelimit.advance(4.999999)
    assert limiter.hit("2/10 seconds using token_bucket", "k").retry_after == 0.000001
    ratelimit.advance(0.000001)
    assert allowed(limiter, 2, "2/10 seconds using token_bucket") == [True, False]


def test_advance_stops_time(ratelimit: Control) -> None:
    limiter = Limiter()
    ratelimit.advance(0)
    verdicts = [limiter.hit("1/minute using token_bucket", "k") for _ in range(100)]
    assert {verdict.retry_after for verdict in verdicts[1:]} == {60.0}


def test_charges_from_before_freeze_still_count(ratelimit: Control) -> None:
    limiter = Limiter()
    assert allowed(limiter, 2) == [True, True]
    ratelimit.freeze()
    assert allowed(limiter) == [False]
    ratelimit.advance(2 * 3600)
    assert allowed(limiter, 3) == [True, True, False]


def test_second_freeze_changes_nothing(ratelimit: Control) -> None:
    limiter = Limiter()
    ratelimit.advance(10)
    verdict = limiter.hit("1/minute using token_bucket", "k")
    ratelimit.freeze()
    again = limiter.peek("1/minute using token_bucket", "k")
    assert again.decisions[0].reset_after == verdict.decisions[0].reset_after == 60.0


def test_time_control_includes_stores_created_later(ratelimit: Control) -> None:
    ratelimit.advance(0)
    limiter = Limiter()
    assert allowed(limiter, 3) == [True, True, False]
    ratelimit.advance(2 * 3600)
    assert allowed(limiter) == [True]


def test_memory_store_with_a_clock_uses_only_that_clock(ratelimit: Control) -> None:
    clock = Clock()
    limiter = Limiter(MemoryStore(clock=clock))
    ratelimit.advance(0)
    assert allowed(limiter, 3) == [True, True, False]
    ratelimit.advance(2 * 3600)
    assert allowed(limiter) == [False]
    clock.advance(2 * 3600)
    assert allowed(limiter) == [True]


def test_reset_clears_all_stores_and_does_not_restart_time(ratelimit: Control) -> None:
    limiters = [Limiter(), Limiter(MemoryStore(clock=Clock()))]
    for limiter in limiters:
        assert allowed(limiter, 3) == [True, True, False]
    ratelimit.reset()
    for limiter in limiters:
        assert allowed(limiter, 3) == [True, True, False]
    ratelimit.advance(0)
    ratelimit.reset()
    verdicts = [limiters[0].hit("1/minute using token_bucket", "k") for _ in range(100)]
    assert {verdict.retry_after for verdict in verdicts[1:]} == {60.0}


def test_stores_are_empty_and_time_runs_after_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter()
    with freeze() as clock:
        clock.advance(10**6)
        assert allowed(limiter, 3) == [True, True, False]
    assert allowed(limiter, 3) == [True, True, False]
    monkeypatch.setattr("ratelimit_mw.stores.memory.monotonic_ns", lambda: 10**18)
    assert allowed(limiter) == [True]


def test_freeze_is_undone_after_an_exception() -> None:
    limiter = Limiter()

    def fail() -> None:
        with freeze():
            assert allowed(limiter, 3) == [True, True, False]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with freeze():
        assert allowed(limiter, 3) == [True, True, False]


def test_freeze_keeps_states_of_memory_stores_until_reset() -> None:
    limiter = Limiter()
    assert allowed(limiter, 2) == [True, True]
    with freeze() as clock:
        assert allowed(limiter) == [False]
        clock.reset()
        assert allowed(limiter) == [True]


def test_freeze_raises_while_the_fixture_controls_the_stores(ratelimit: Control) -> None:
    with pytest.raises(RuntimeError, match="controlled already, by freeze"), freeze():
        pass
    ratelimit.freeze()


def test_control_raises_after_its_end() -> None:
    with freeze() as clock:
        pass
    for call in (clock.freeze, clock.reset, lambda: clock.advance(1)):
        with pytest.raises(RuntimeError, match="is over"):
            call()
    with freeze(), pytest.raises(RuntimeError, match="is over"):
        clock.advance(1)


@pytest.mark.parametrize("by", [-1, float("inf"), None, "1"])
def test_advance_rejects_invalid_times(ratelimit: Control, by: Any) -> None:
    with pytest.raises(ConfigError, match=r"^by: got "):
        ratelimit.advance(by)


def test_freeze_keeps_no_reference_to_a_store() -> None:
    class Unhashable(MemoryStore):
        __hash__ = None  # type: ignore[assignment]  # a user's store may be unhashable

    store = Unhashable()
    gone = weakref.ref(store)
    with freeze() as clock:
        assert allowed(Limiter(store), 3) == [True, True, False]
        del store
        gc.collect()
        assert gone() is None
        clock.advance(1)


class Down:
    """A store that fails."""

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        raise StoreError("down")

    peek = take

    def settle(self, charges: Sequence[Charge]) -> None: ...

    reset = settle

    def close(self) -> None: ...


def test_time_control_includes_the_fallback_store(ratelimit: Control) -> None:
    app = Flask("app")
    app.add_url_rule("/", view_func=lambda: "hello")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits=LIMIT, store=Down())  # type: ignore[method-assign]  # as documented
    client = app.test_client()
    ratelimit.freeze()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    ratelimit.advance(2 * 3600)
    assert client.get("/").status_code == 200


def test_time_control_includes_recording_stores(ratelimit: Control) -> None:
    store = RecordingStore()
    ratelimit.freeze()
    assert allowed(Limiter(store), 3) == [True, True, False]
    ratelimit.advance(2 * 3600)
    assert allowed(Limiter(store)) == [True]
    assert [verb for verb, _ in store.calls] == ["take"] * 4


def check_on_a_server(store: Store, client: Any) -> None:
    """Check that `freeze` uses keys of its own on a server. `store` has charged nothing yet."""
    limiter = Limiter(store)
    assert allowed(limiter, 3) == [True, True, False]
    (before,) = client.keys("*")
    with freeze() as clock:
        assert allowed(limiter, 3) == [True, True, False]
        clock.advance(2 * 3600)
        assert allowed(limiter, 3) == [True, True, False]
        clock.reset()
        assert allowed(limiter, 3) == [True, True, False]
        added = set(client.keys("*")) - {before}
        assert {re.sub(rb"-[0-9a-f]{16}:", b":", key) for key in added} == {before.replace(b"rl:1:", b"rl:1:test:")}
        assert len(added) == 2
    assert allowed(limiter) == [False]  # the state from before `freeze`
    assert all(client.pttl(key) > 0 for key in added)


def test_freeze_controls_redis_and_keeps_existing_states(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    with Redis.from_url(redis_url) as client:
        check_on_a_server(store, client)
    store.close()


def test_freeze_controls_a_cluster_and_keeps_existing_states(redis_cluster: RedisCluster) -> None:
    store = RedisStore(redis_cluster.url, timeout=5)
    limiter = Limiter(store)
    two = f"{LIMIT}; 5/day"
    assert allowed(limiter, 3, two) == [True, True, False]
    with freeze() as clock:
        assert allowed(limiter, 3, two) == [True, True, False]
        clock.advance(2 * 3600)
        assert [decision.remaining for decision in limiter.hit(two, "k").decisions] == [1, 2]
    assert allowed(limiter, 1, two) == [False]
    store.close()


def test_freeze_controls_a_redis_client_passed_in_and_keeps_existing_states() -> None:
    client = fakeredis.FakeRedis(socket_timeout=0.05)
    check_on_a_server(RedisStore(client), client)


def test_charges_in_redis_from_before_the_fixture_freezes_still_count(ratelimit: Control, redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    limiter = Limiter(store)
    assert allowed(limiter, 2) == [True, True]
    ratelimit.freeze()
    assert allowed(limiter) == [False]
    ratelimit.advance(2 * 3600)
    assert allowed(limiter) == [True]
    store.close()


def test_redis_store_with_a_clock_uses_only_that_clock(ratelimit: Control, redis_url: str) -> None:
    clock = Clock()
    store = RedisStore(redis_url, timeout=5, clock=clock)
    limiter = Limiter(store)
    ratelimit.freeze()
    assert allowed(limiter, 3) == [True, True, False]
    ratelimit.advance(2 * 3600)
    assert allowed(limiter) == [False]
    clock.advance(2 * 3600)
    assert allowed(limiter) == [True]
    store.close()


def test_freeze_controls_an_async_redis_store_and_keeps_existing_states(redis_url: str) -> None:
    async def main() -> list[bool]:
        store = AsyncRedisStore(redis_url, timeout=5)
        limiter = AsyncLimiter(store)
        answers = [(await limiter.hit(LIMIT, "k")).allowed for _ in range(2)]
        with freeze() as clock:
            answers += [(await limiter.hit(LIMIT, "k")).allowed for _ in range(3)]
            clock.advance(2 * 3600)
            answers += [(await limiter.hit(LIMIT, "k")).allowed]
        answers += [(await limiter.hit(LIMIT, "k")).allowed]
        await store.aclose()
        return answers

    assert asyncio.run(main()) == [True, True, True, True, False, True, False]


# A user's project: two apps, created once, and tests that run in sequence in one process.
APPS = """
import os

from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

terms = {"limits": "2/minute", "store": os.environ["STORE"], "store_timeout": 5}


async def home(_):
    return PlainTextResponse("hello")


starlette = Starlette(routes=[Route("/", home)])
starlette.add_middleware(Asgi, **terms)
flask = Flask("shop")
flask.add_url_rule("/", view_func=lambda: "hello")
flask.wsgi_app = Wsgi(flask.wsgi_app, **terms)
"""
TESTS = """
import asyncio

import httpx
import pytest

import apps


def ask_flask(count):
    return [apps.flask.test_client().get("/").status_code for _ in range(count)]


def ask_starlette(count):
    async def main():
        transport = httpx.ASGITransport(app=apps.starlette)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [(await client.get("/")).status_code for _ in range(count)]

    return runner.run(main())


runner = asyncio.Runner()


@pytest.fixture(scope="session", autouse=True)
def the_end():
    yield
    steps = iter(["startup", "shutdown"])  # at which the middleware closes its store

    async def step(*_):
        return {"type": f"lifespan.{next(steps, None)}"}

    async def told(_):
        pass

    runner.run(apps.starlette({"type": "lifespan", "asgi": {"version": "3.0"}}, step, told))
    runner.close()


@pytest.fixture(params=[ask_flask, ask_starlette])
def ask(request):
    return request.param


def test_two_a_minute(ratelimit, ask):
    ratelimit.freeze()
    assert ask(3) == [200, 200, 429]
    ratelimit.advance(59)
    assert ask(1) == [429]
    ratelimit.advance(1)
    assert ask(1) == [200]


def test_units_taken_by_other_tests_do_not_count(ask, ratelimit):
    assert ask(3) == [200, 200, 429]
    ratelimit.freeze()
    assert ask(1) == [429]
    ratelimit.advance(60)
    assert ask(1) == [200]
    ratelimit.reset()
    assert ask(3) == [200, 200, 429]


def test_a_failure_restores_time(ratelimit, ask):
    ratelimit.advance(10**6)
    ask(3)
    assert False


def test_without_the_fixture_time_runs_and_no_request_is_refused(ask):
    assert ask(1) == [200]
"""


def run_pytest(folder: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)


@pytest.mark.one_redis
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_fixture_isolates_the_tests_of_a_users_suite(tmp_path: Path, redis_url: str, kind: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n", "utf-8")
    (tmp_path / "apps.py").write_text(APPS, "utf-8")
    (tmp_path / "test_apps.py").write_text(TESTS, "utf-8")
    done = run_pytest(tmp_path, STORE=redis_url if kind == "redis" else "memory://")
    failed = re.findall(r"^FAILED test_apps.py::(\S+) - assert False$", done.stdout, re.MULTILINE)
    assert failed == [f"test_a_failure_restores_time[{ask}]" for ask in ("ask_flask", "ask_starlette")], done.stdout
    assert re.search(r"^2 failed, 6 passed in ", done.stdout, re.MULTILINE)


def test_first_test_in_the_docs_passes_under_pytest(tmp_path: Path) -> None:
    app, test = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "test_shop.py").write_text(f"{app}\n\n{test}", "utf-8")
    done = run_pytest(tmp_path)
    assert re.search(r"^1 passed in ", done.stdout, re.MULTILINE), done.stdout


def test_package_registers_its_pytest_plugin() -> None:
    found = [entry.value for entry in entry_points(group="pytest11", name="ratelimit_mw")]
    assert found == ["ratelimit_mw.testing.plugin"]


def test_plugin_imports_no_client_or_framework_and_causes_no_warnings(tmp_path: Path) -> None:
    (tmp_path / "test_modules.py").write_text(
        "import sys\n\ndef test_modules():\n"
        "    assert 'ratelimit_mw.testing.plugin' in sys.modules\n"
        "    assert not {'redis', 'starlette', 'fastapi', 'flask', 'django'} & set(sys.modules)\n",
        "utf-8",
    )
    done = run_pytest(tmp_path)
    assert re.fullmatch(r"\.\s+\[100%\]\n1 passed in .*\n", done.stdout), done.stdout
    # there is no warning either if the package was imported before pytest
    code = "import sys, ratelimit_mw, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-W', 'error']))"
    command = [sys.executable, "-W", "error", "-c", code]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, ""), again.stdout
