"""Tests the INFO line of a refusal: its rule, its limit and a hashed key; few lines in a flood."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ratelimit_mw import MemoryStore
from ratelimit_mw.core.identity import identity_hash
from ratelimit_mw.engine import refusal_log as refusals
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.scenario import Step

NAME = "ratelimit_mw.refusals"
SECRET = "of these tests alone, and long enough"
HASH = identity_hash(SECRET)("ip=192.0.2.1")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that limits the log lines per second."""
    clock = Clock()
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(refusals, "_second", refusals._Second(0))
    return clock


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("make", [RecordingStore, MemoryStore], ids=["a store", "memory"])
@pytest.mark.parametrize("face", FACES)
def test_each_refusal_logs_one_line(
    face: str, make: Callable[..., Any], plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"limits": "1/minute; 9/hour", "plain_keys": plain, "key_secret": SECRET}
    send = FACES[face]({**own, "store": make(clock=Clock())})
    with caplog.at_level(logging.INFO, NAME):
        assert [send(Step()).status for _ in range(3)] == [200, 429, 429]
    (first, second) = [record for record in caplog.records if record.name == NAME]
    assert first.levelno == logging.INFO
    assert (
        first.getMessage()
        == second.getMessage()
        == (f"ratelimit_mw: refused by rule default, limit default, key {HASH}; retry after 60.000 s")
    )
    fields = {name: value for name, value in vars(first).items() if name.startswith("ratelimit_")}
    assert fields == {
        "ratelimit_rule": "default",
        "ratelimit_limit": "default",
        "ratelimit_key": HASH,
        "ratelimit_retry_after": 60.0,
        "ratelimit_source": "store",
        "ratelimit_not_logged": 0,
    }


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("more", "rule", "source"),
    [
        ({"blocklist": ["192.0.2.1"]}, "blocklist", "store"),
        ({"key": "header:x-none | header:x-not", "missing_key": "deny"}, "default", "store"),
        ({"on_store_error": "deny"}, "default", "denied_on_error"),
    ],
    ids=["blocklist", "no key", "no store"],
)
def test_a_refusal_without_a_limit_logs_one_line(
    face: str, more: dict[str, Any], rule: str, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RecordingStore(clock=Clock())
    store.error = ConnectionError("down")
    send = FACES[face]({"limits": "1/minute", "store": store, **more})
    with caplog.at_level(logging.INFO, NAME):
        send(Step())
    (record,) = [record for record in caplog.records if record.name == NAME]
    found = vars(record)
    assert (found["ratelimit_rule"], found["ratelimit_limit"], found["ratelimit_key"]) == (rule, None, None)
    assert found["ratelimit_source"] == source


@pytest.mark.parametrize("make", [RecordingStore, MemoryStore], ids=["a store", "memory"])
@pytest.mark.parametrize("face", FACES)
def test_ten_refusals_a_second_are_logged_and_the_rest_are_counted(
    face: str, make: Callable[..., Any], now: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    send = FACES[face]({"limits": "1/hour", "key": "ip", "store": make(clock=Clock())})
    with caplog.at_level(logging.INFO, NAME):
        for _ in range(26):
            send(Step())
        now.advance(1)
        send(Step())
        now.advance(1)
        send(Step())
    left_out = [vars(record)["ratelimit_not_logged"] for record in caplog.records if record.name == NAME]
    assert left_out == [0] * 10 + [15, 0]
    assert "; earlier refusals that were not logged: 15" in caplog.text


@pytest.mark.parametrize("face", FACES)
def test_with_info_off_refusals_are_not_logged_and_the_clock_is_not_read(
    face: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "time", None)
    send = FACES[face]({"limits": "1/minute", "key": "ip", "store": MemoryStore(clock=Clock())})
    with caplog.at_level(logging.WARNING, NAME):
        assert [send(Step()).status for _ in range(2)] == [200, 429]
    assert [record for record in caplog.records if record.name == NAME] == []
