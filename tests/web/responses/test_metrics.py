"""Tests what the metrics count: requests in each integration, limits on endpoints, waits, messages, Redis calls."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

from message_codes import plain
from profiles import PROOF
from ratelimit_mw import Charge, ConfigError, FixedWindow, Limit, MemoryStore, flask, parse
from ratelimit_mw import starlette as our_starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.observation import digest
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.metrics.families import (
    DELAY_SECONDS,
    DELAYED,
    POLICY_INFO,
    REFUSALS,
    REQUESTS,
    STORE_ERRORS,
    STORE_KEYS,
    STORE_OPEN,
    STORE_SECONDS,
    WAITING,
    Family,
    sample_name,
)
from ratelimit_mw.metrics.recording import STORE_CALLS
from ratelimit_mw.metrics.registry import MAX_SERIES, Registry
from ratelimit_mw.opentelemetry import instrument
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer
from web.asgi_talk import HTTP, App200, Talk, talk
from web.django_ask import BOTH, Site
from web.faces import FACES
from web.frameworks.test_django_throttle import Burst, throttled
from web.scenario import Step
from web.slots.test_delays import PACED, SLOW
from web.websocket_talk import chat

Labels = tuple[str, ...]
PATIENT = 60.0  # seconds
TURNS = 100_000  # turns of an event loop


def of(counts: Registry, family: Family, part: str = "") -> dict[Labels, int]:
    """Return the counts of a metric, by labels."""
    return {
        labels: count
        for (name, labels), count in counts.own_counts().items()
        if name == sample_name(family, part) and count
    }


@pytest.mark.usefixtures("at_first_and_settled")
@pytest.mark.parametrize("face", FACES)
def test_the_fast_path_of_a_memory_store_counts_requests(face: str, counts: Registry) -> None:
    """A plain MemoryStore takes a single charge on a faster path than the recording store of the scenarios."""
    ask = FACES[face]({"limits": "2/minute", "key": "ip", "metrics": True, "store": MemoryStore(clock=Clock())})
    assert [ask(Step()).status for _ in range(3)] == [200, 200, 429]
    assert of(counts, REQUESTS) == {("default", "admitted", "store"): 2, ("default", "refused", "store"): 1}
    assert of(counts, REFUSALS) == {("default", "default", "false"): 1}
    assert of(counts, STORE_KEYS) == {(): 1}


@pytest.mark.usefixtures("at_first_and_settled")
@pytest.mark.parametrize("face", FACES)
def test_refusals_are_counted_by_the_name_of_the_limit(face: str, counts: Registry) -> None:
    limits = ["3/minute", {"limit": "1/hour", "shadow": True}, {"limit": "2/day", "name": "daily"}]
    ask = FACES[face]({"limits": limits, "key": "ip", "metrics": True, "store": MemoryStore(clock=Clock())})
    assert [ask(Step()).status for _ in range(4)] == [200, 200, 429, 429]
    assert of(counts, REQUESTS) == {("default", "admitted", "store"): 2, ("default", "refused", "store"): 2}
    assert of(counts, REFUSALS) == {("default", "default-2", "true"): 3, ("default", "daily", "false"): 2}


def test_limit_names_from_a_callable_do_not_become_labels(counts: Registry) -> None:
    def limits(request: Any) -> list[Limit]:
        return [FixedWindow(1, 60, name=f"of-{request.client.replace('.', '-')}"), FixedWindow(9, 3600)]

    app = RateLimitMiddleware(App200(), limits=limits, metrics=True)
    clients = 5000 if PROOF else 50
    for number in range(clients):
        for _ in range(2):
            talk(app, HTTP, client=(f"10.0.{number // 256}.{number % 256}", 1))
    assert of(counts, REFUSALS) == {("default", "default", "false"): clients}


def test_the_number_of_series_is_bounded_with_many_rules_and_clients(counts: Registry) -> None:
    rules = [{"name": f"rule-{n}", "path": f"/{n}", "limits": "1/minute"} for n in range(500)]
    app = RateLimitMiddleware(App200(), limits="9/minute", rules=rules, metrics=True)
    requests = 100_000 if PROOF else 1200

    async def ask() -> None:
        for n in range(requests):
            client = (f"10.{n % 7}.{n // 256 % 256}.{n % 256}", 1)
            await Talk().with_app(app, HTTP, path=f"/{n % 501}", client=client)

    asyncio.run(ask())
    assert len(counts.own_counts()) <= MAX_SERIES
    assert sum(of(counts, REQUESTS).values()) == requests


def test_requests_to_limited_endpoints_are_counted_under_their_rule(counts: Registry) -> None:
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    options: dict[str, Any] = {"limits": "9/minute", "metrics": True}
    star = Starlette(routes=[Route("/star", our_starlette.limit("1/minute")(page))])
    star.add_middleware(RateLimitMiddleware, **options)
    fast = FastAPI()
    fast.add_api_route("/fast", lambda: "hello", dependencies=[Depends(RateLimit("1/minute"))])
    fast.add_middleware(RateLimitMiddleware, **options)
    for app, at in ((star, "/star"), (fast, "/fast")):
        assert [asyncio.run(status(app, at)) for _ in range(2)] == [200, 429]
    web = Flask(__name__)
    web.add_url_rule("/web", view_func=flask.limit("1/minute")(lambda: "hello"), endpoint="page")
    flask.RateLimiter(web, **options)
    assert [Client(web).get("/web").status_code for _ in range(2)] == [200, 429]
    assert of(counts, REQUESTS) == {
        ("default", "admitted", "store"): 4,  # Starlette and FastAPI decide the default limits in a separate step
        **{
            (rule, outcome, "store"): 1
            for rule in ("GET_star", "GET_fast", "GET_web")
            for outcome in ("admitted", "refused")
        },
    }


@BOTH
def test_throttles_are_counted_under_their_class_name(site: Site, counts: Registry) -> None:
    ask = site([path("", throttled(Burst))], {"limits": [], "metrics": True, "store": RecordingStore(clock=Clock())})
    assert [ask().status for _ in range(3)] == [200, 200, 429]
    assert of(counts, REQUESTS) == {("Burst", "admitted", "store"): 2, ("Burst", "refused", "store"): 1}


def test_websocket_messages_are_counted(counts: Registry) -> None:
    chat({"limits": "9/minute", "messages": "2/minute", "on_message_refused": "drop", "metrics": True}, *"abc")
    assert of(counts, REQUESTS) == {
        ("default", "admitted", "store"): 3,  # including the handshake
        ("default", "refused", "store"): 1,
    }


@pytest.mark.parametrize("face", FACES)
def test_delayed_requests_and_their_delays_are_counted(face: str, counts: Registry) -> None:
    ask = FACES[face]({"limits": PACED, "store": MemoryStore(clock=Clock()), "metrics": True})
    assert [ask(Step()).status for _ in range(4)] == [200, 200, 200, 429]
    assert of(counts, DELAYED) == {("default",): 2}
    assert of(counts, DELAY_SECONDS) == {("default",): 60_000}  # microseconds: 20 and 40 ms
    assert of(counts, WAITING) == {}


@pytest.mark.parametrize(
    "settings", [{"limits": SLOW}, {"limits": [], "concurrent": 1, "queue": 1}], ids=["delay", "queue"]
)
def test_waiting_requests_are_counted_until_canceled(settings: dict[str, Any], counts: Registry) -> None:
    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    app = RateLimitMiddleware(endless, metrics=True, store=MemoryStore(clock=Clock()), **settings)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None: ...

    async def ask() -> list[dict[Labels, int]]:
        found = []
        first, second = (asyncio.ensure_future(app({**HTTP}, receive, send)) for _ in range(2))
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if of(counts, WAITING):
                break
        found.append(of(counts, WAITING))
        for task in (second, first):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return [*found, of(counts, WAITING)]

    assert asyncio.run(ask()) == [{("default",): 1}, {}]


async def status(app: Any, at: str) -> Any:
    talked = await Talk({"type": "http.request", "body": b""}).with_app(app, HTTP, path=at, query_string=b"")
    return talked.sent[0]["status"]


@pytest.mark.usefixtures("counts")
def test_metrics_and_spans_give_each_gate_an_observer() -> None:
    for observed in ({}, {"metrics": True}, {"span_attributes": "all"}, {"span_attributes": "refused"}):
        settings = Settings(limits="1/minute", **observed)
        gate = AsyncGate(settings)
        gates = [Gate(settings), gate, gate.nested, gate.sync_gate]
        assert [one is not None and one._observe is not None for one in gates] == [bool(observed)] * 4


def test_policy_info_contains_the_digest_of_the_settings(counts: Registry) -> None:
    def limits(_: Any) -> str:
        return "1/minute"

    settings = Settings(limits=limits, key_secret="0123456789abcdef", metrics=True)
    gate = AsyncGate(settings)
    assert gate.nested is not None
    assert of(counts, POLICY_INFO) == {(digest(settings), "off"): 1}
    assert digest(Settings(limits=limits, key_secret="another of so many bytes", metrics=True)) == digest(settings)
    assert digest(Settings(limits=limits, metrics=True, jitter=1)) != digest(settings)


def test_an_unusable_metrics_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"metrics_folder: got .*file', which cannot be used: File exists; choose"):
        Gate(Settings(limits="1/minute", metrics=True, metrics_folder=str(tmp_path / "file")))


@pytest.fixture
def away() -> Iterator[str]:
    """Return the URL of a server that is down: the port is bound, but nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{bound.getsockname()[1]}"


def test_store_metrics_count_redis_calls_instead_of_takes(own_redis: RedisServer, counts: Registry) -> None:
    own_redis.flush()
    Gate(Settings(limits="1/minute", metrics=True))  # starts counting calls
    charge = Charge("{a}:b", parse("9/minute")[0])
    store = RedisStore(own_redis.url, timeout=PATIENT, deny_cache=0)
    decision = store.take([charge])[0]
    store.take([charge])
    store.settle([Charge(charge.key, charge.limit, -1, at=decision.at)])
    store.close()
    assert calls(counts) == {"take": 2, "settle": 1}

    async def many() -> None:
        store = AsyncRedisStore(own_redis.url, timeout=PATIENT, deny_cache=0)
        await store.atake([charge])  # connects
        await asyncio.gather(*[store.atake([charge]) for _ in range(20)])
        await store.asettle([Charge(charge.key, charge.limit, -1, at=decision.at)])
        await store.aclose()

    asyncio.run(many())
    assert calls(counts) == {"take": 5, "settle": 2}  # 20 takes in one turn of the event loop make two calls
    assert of(counts, STORE_ERRORS) == {}


def calls(counts: Registry) -> dict[str, int]:
    """Return how many calls the histogram has, by kind. Asserts that each kind took some time."""
    found: dict[str, int] = {}
    for (call, _), count in of(counts, STORE_SECONDS, "bucket").items():
        found[call] = found.get(call, 0) + count
    assert of(counts, STORE_SECONDS, "sum").keys() == {(call,) for call in found}
    return found


@pytest.mark.parametrize("face", ["wsgi", "asgi"])
def test_an_unreachable_server_counts_errors_and_then_an_open_circuit_breaker(
    face: str, away: str, counts: Registry
) -> None:
    ask = FACES[face]({"limits": "9/minute", "store": away, "metrics": True, "store_timeout": 5})
    for _ in range(20):
        assert ask(Step(source="local")).status == 200
        if of(counts, STORE_OPEN):
            break
    errors = of(counts, STORE_ERRORS)
    assert errors.keys() == {("take", "connection")}
    assert 1 <= errors["take", "connection"] <= 20
    assert of(counts, STORE_OPEN) == {(): 1}
    (answers,) = of(counts, REQUESTS).items()
    assert answers[0] == ("default", "admitted", "local")


class TestOpenTelemetry:
    """Instruments and spans."""

    def test_instruments_export_the_counts(self, counts: Registry) -> None:
        reader = InMemoryMetricReader()
        instrument(MeterProvider([reader]))
        app = RateLimitMiddleware(App200(), limits="1/minute", metrics=True)
        for _ in range(3):
            talk(app, HTTP)
        STORE_CALLS.record("take", 0.25)
        assert sum(of(counts, REQUESTS).values()) == 3
        (resource,) = reader.get_metrics_data().resource_metrics  # type: ignore[union-attr]  # there is data
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "ratelimit_mw"
        found = {
            (metric.name, metric.unit, *sorted(dict(point.attributes or {}).items())): getattr(point, "value", None)
            for metric in scope.metrics
            for point in metric.data.data_points
        }
        labels = ("ratelimit.rule", "default"), ("ratelimit.source", "store")
        shadow = ("ratelimit.limit", "default"), ("ratelimit.rule", "default"), ("ratelimit.shadow", "false")
        assert found == {
            ("ratelimit.requests", "{request}", ("ratelimit.outcome", "admitted"), *labels): 1,
            ("ratelimit.requests", "{request}", ("ratelimit.outcome", "refused"), *labels): 2,
            ("ratelimit.refusals", "{request}", *shadow): 2,
            ("ratelimit.store.duration", "s", ("ratelimit.store.call", "take")): None,
        }

    @pytest.mark.parametrize("face", ["asgi", "wsgi"])
    @pytest.mark.parametrize(("setting", "described"), [("none", [0, 0]), ("refused", [0, 1]), ("all", [1, 1])])
    @pytest.mark.parametrize("more", [{}, {"metrics": True}], ids=["", "counted"])
    @pytest.mark.parametrize("key", ["ip", "user | ip"], ids=["fast", "general"])
    @pytest.mark.usefixtures("counts", "at_first_and_settled")
    def test_span_attributes_describe_the_decision(
        self, face: str, setting: str, described: list[int], more: dict[str, Any], key: str
    ) -> None:
        options = {"limits": "1/minute", "span_attributes": setting, "key": key, **more}
        ask = FACES[face]({**options, "store": MemoryStore(clock=Clock())})
        tracer = TracerProvider().get_tracer(__name__)
        spans = []
        for _ in range(2):
            with tracer.start_as_current_span("request") as span:
                ask(Step(headers={"x": "y"}))
            spans.append(dict(span.attributes or {}))  # type: ignore[attr-defined]  # spans of the SDK have it
        own = {"ratelimit.rule": "default", "ratelimit.source": "store", "ratelimit.limit": "default"}
        admitted = {"ratelimit.outcome": "admitted", "ratelimit.remaining": 0, "ratelimit.retry_after": 0.0}
        refused = {"ratelimit.outcome": "refused", "ratelimit.remaining": 0, "ratelimit.retry_after": 60.0}
        assert spans == [own | admitted if described[0] else {}, own | refused if described[1] else {}]

    def test_an_infinite_retry_after_is_left_out_of_the_span(self) -> None:
        tracer = TracerProvider().get_tracer(__name__)
        rule = {"path": "/", "limits": "9/minute", "cost": lambda _: 10}
        app = RateLimitMiddleware(App200(), limits="9/minute", rules=[{**rule, "name": "dear"}], span_attributes="all")
        with tracer.start_as_current_span("request") as span:
            talk(app, HTTP)
        assert dict(span.attributes or {}) == {  # type: ignore[attr-defined]  # spans of the SDK have it
            "ratelimit.rule": "dear",
            "ratelimit.outcome": "refused",
            "ratelimit.source": "store",
            "ratelimit.limit": "dear",
            "ratelimit.remaining": 9,
        }

    def test_the_span_of_a_blocked_client_names_no_limit(self) -> None:
        app = RateLimitMiddleware(App200(), limits="9/minute", blocklist=["192.0.2.1"], span_attributes="refused")
        with TracerProvider().get_tracer(__name__).start_as_current_span("request") as span:
            talk(app, HTTP)
        assert dict(span.attributes or {}) == {  # type: ignore[attr-defined]  # spans of the SDK have it
            "ratelimit.rule": "blocklist",
            "ratelimit.outcome": "refused",
            "ratelimit.source": "store",
            "ratelimit.remaining": 0,
            "ratelimit.retry_after": 0.0,
        }

    def test_span_attributes_require_opentelemetry(self) -> None:
        code = (
            "import sys; sys.modules['opentelemetry'] = None\nfrom ratelimit_mw.wsgi import RateLimitMiddleware\n"
            "RateLimitMiddleware(print, limits='1/minute', span_attributes='all')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert plain(done.stderr.splitlines()[-1]).endswith(
            "ConfigError: span_attributes: needs OpenTelemetry, pip install 'ratelimit-mw[opentelemetry]'"
        )
