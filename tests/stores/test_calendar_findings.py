"""A quota of a calendar period of a day or longer is reported at the start if the store may lose it."""

import logging
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from ratelimit_mw import ConfigError, MemoryStore
from ratelimit_mw.checks import calendar_limits
from ratelimit_mw.cli import main
from ratelimit_mw.engine.base_gate import WSGI
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis.inspection import Inspection, Node, inspect
from redis_servers import RedisServer
from web.plain_request import PlainRequest

MONTH = "100/month in Europe/Berlin using calendar_window"

pytestmark = pytest.mark.one_redis


def reported(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        Gate(Settings(**options), integration=WSGI)
    return [line for line in caplog.messages if "needs a store that keeps it" in line]


def test_long_quota_in_memory_is_reported(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (line,) = reported(caplog, limits=["5/minute", MONTH])
    assert f"store: {MONTH} needs a store that keeps it: memory:// forgets it at a restart" in line
    assert len(reported(caplog, limits=[], app_limits="1/day using calendar_window")) == 1
    for short in ("5/hour using calendar_window", "5/month"):
        assert reported(caplog, limits=short) == []
    assert reported(caplog, limits=MONTH, store=f"sqlite:///{tmp_path}/limits.db") == []


def test_long_quota_under_asgi_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    AsyncGate(Settings(limits=MONTH))
    assert len([line for line in caplog.messages if "needs a store that keeps it" in line]) == 1


def test_a_long_quota_that_a_callable_returns_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    choice = ["5/month"]
    gate = Gate(Settings(limits=lambda _: choice[0], store=MemoryStore()), integration=WSGI)

    def seen(limits: str) -> list[str]:
        caplog.clear()
        choice[0] = limits
        assert gate.admit(PlainRequest())
        return [line for line in caplog.messages if "keeps it" in line]

    assert seen("5/hour using calendar_window") == []
    (line,) = seen(MONTH)
    assert line.startswith(f"ratelimit_mw: store: {MONTH} needs a store that keeps it: memory:// forgets it")
    assert seen(MONTH) == []
    assert seen("7/month using calendar_window") == []
    again = Gate(gate.settings, integration=WSGI, before=gate)
    assert again.admit(PlainRequest())
    assert [line for line in caplog.messages if "keeps it" in line] == []


def test_with_strict_a_server_is_inspected_for_what_callables_may_return(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Inspection("redis", [], losses=["it may evict it"])
    monkeypatch.setattr(calendar_limits, "inspect_store", lambda *_: found)
    monkeypatch.setattr(Gate, "_probe", lambda _: None)
    for strict, warned in ((False, []), (True, [f"store: {MONTH} needs a store that keeps it: it may evict it"])):
        caplog.clear()
        settings = Settings(limits=lambda _: MONTH, store="redis://redis:6379", strict=strict, store_timeout=0.001)
        gate = Gate(settings, integration=WSGI)
        assert gate.admit(PlainRequest())
        assert [line[14:] for line in caplog.messages if "keeps it" in line] == warned


def test_server_that_may_lose_a_long_quota_is_reported_with_strict(
    caplog: pytest.LogCaptureFixture, redis_server: RedisServer
) -> None:
    url = redis_server.url
    with Redis.from_url(url) as client:
        before = {name: client.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy", "appendonly")}
        try:
            client.config_set("appendonly", "yes")
            assert inspect(url, "rl:", [], 5.0).losses == []
            assert reported(caplog, limits=MONTH, store=url, strict=True) == []
            client.config_set("appendonly", "no")
            (line,) = reported(caplog, limits=MONTH, store=url, strict=True)
            assert "set appendonly yes" in line
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-lru")
            evicts, forgets = reported(caplog, limits=MONTH, store=url, strict=True)
            assert "may evict it, with maxmemory-policy allkeys-lru; set noeviction" in evicts
            assert forgets == line
            assert reported(caplog, limits="5/month", store=url, strict=True) == []
            assert reported(caplog, limits=MONTH, store=url) == []  # connects to no server before the first request
        finally:
            for name, value in before.items():
                client.config_set(name, value)


MINUTE = "5/minute using calendar_window"


@pytest.mark.parametrize(
    ("offset", "limits", "notation"),
    [
        (59.9, [MINUTE, MONTH], None),
        (60.0, [MONTH, MINUTE], MINUTE),
        (-60.0, [MINUTE], MINUTE),
        (-3_000_000.0, [MONTH], MONTH),
        (60.0, [MONTH, "5/minute"], None),
        (None, [MINUTE], None),
    ],
)
def test_server_in_another_period_is_a_finding(
    offset: float | None, limits: list[str], notation: str | None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Inspection("redis", [Node(label="redis:6379", clock_offset=offset)])
    monkeypatch.setattr(calendar_limits, "inspect_store", lambda *_: found)
    monkeypatch.setattr(Gate, "_probe", lambda _: None)
    settings = Settings(limits=limits, store="redis://redis:6379", strict=True)
    if notation is None:
        Gate(settings, integration=WSGI)
    else:
        with pytest.raises(ConfigError, match="differs by") as caught:
            Gate(settings, integration=WSGI)
        assert str(caught.value) == (
            f"store: {notation} counts in a wrong period: the clock of redis:6379 differs by {offset:+.0f} s from that "
            "of this machine; synchronize the clocks"
        )
    assert [one for one in caplog.messages if "period" in one] == []


def test_check_of_a_store_names_what_it_may_lose(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, redis_server: RedisServer
) -> None:
    path = tmp_path / "limits.toml"
    for limit, warned in ((MONTH, True), ("5/month", False)):
        path.write_text(f'limits = "{limit}"\nstore = "{redis_server.url}"\n', "utf-8")
        main(["check", str(path), "--store"])
        assert ("needs a store that keeps it: " in capsys.readouterr().out) == warned
