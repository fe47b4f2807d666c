"""Tests the functions with which operators set overrides and switches."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import ConfigError, StoreError, admin
from ratelimit_mw.rules import override_entries
from ratelimit_mw.stores.sqlite import SQLiteStore

SECRET = "one secret of the tests"  # not a secret
DAY = 86_400.0
RULES = [{"path": "/login", "name": "login", "limits": "5/minute", "key": "user"}]
NOTHING_LEFT = r"^undo: nothing of '[0-9a-f]{8}' is left to undo"
IP: Mapping[str, Any] = {"ip": "192.0.2.7"}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    url = f"sqlite://{tmp_path}/limits.db"
    SQLiteStore(url).close()  # creates the file, as an app does
    return {"limits": "2/hour", "rules": RULES, "store": url}


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds since 1970, which a test can set."""
    times = [1_000_000_000.0]
    for module in ("admin.changing", "admin.override_set", "stores.sqlite.kept_overrides"):
        monkeypatch.setattr(f"ratelimit_mw.{module}.time.time", lambda: times[0])
    return times


def whos(settings: Mapping[str, Any]) -> list[tuple[str, str | None, str]]:
    return [(one.who, one.rule, one.action) for one in admin.overrides(settings).overrides]


@pytest.mark.parametrize(
    ("who", "stored"),
    [
        ({"ip": "192.0.2.7"}, "ip=192.0.2.7"),
        ({"ip": "192.0.2.7/32"}, "ip=192.0.2.7"),
        ({"ip": "::ffff:192.0.2.7"}, "ip=192.0.2.7"),
        ({"ip": "2001:DB8:0::1"}, "ip=2001:db8::1"),
        ({"ip": "192.0.2.0/24"}, "ip=192.0.2.0/24"),
        ({"ip": "2001:db8::/48"}, "ip=2001:db8::/48"),
        ({"user": "bob"}, "user=bob"),
        ({"user": "b+b"}, "user=b%2Bb"),
        ({"headers": ["X-Api-Key: abc"]}, "header:x-api-key=abc"),
        ({"headers": {"X-Api-Key": "abc"}}, "header:x-api-key=abc"),
        ({"headers": ["Cookie: sid=7"]}, "cookie:sid=7"),
        ({"key": "1f3a"}, "key=1f3a"),
    ],
)
def test_a_client_is_described_in_one_way(who: Mapping[str, Any], stored: str, settings: Mapping[str, Any]) -> None:
    override = admin.set_override(settings, **who, exempt=True, note="why", by="eve")
    assert override == admin.Override(override.id, None, stored, "exempt", None, 1_000_086_400.0, "why", "eve")
    assert re.fullmatch("[0-9a-f]{8}", override.id)
    assert admin.overrides(settings).overrides == [override]
    assert admin.clear_override(settings, **who).overrides == [override]
    assert admin.overrides(settings).overrides == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"exempt": True}, "override: got 0 descriptions of the client, expected one of ip, user, headers"),
        ({"exempt": True, "ip": "192.0.2.7", "user": "bob"}, "override: got 2 descriptions of the client"),
        ({"exempt": True, "headers": ["X-A: 1", "X-B: 2"]}, "--header: got ['X-A: 1', 'X-B: 2'], expected one of"),
        ({"exempt": True, "headers": ["X-A"]}, "--header: got 'X-A', expected a name and a value"),
        ({"exempt": True, "headers": ["X-A: "]}, "--header: got 'X-A: ', expected one value"),
        ({"exempt": True, "headers": ["X_A: 1"]}, "--header: got the header 'x_a', expected a name without '_'"),
        ({"exempt": True, "ip": "192.0.2.300"}, "--ip: got '192.0.2.300', expected a network"),
        ({"exempt": True, "ip": "0.0.0.0/0"}, "--ip: got '0.0.0.0/0', which is every address"),
        ({"exempt": True, "user": ""}, "--user: got '', expected text"),
        (IP, "override: expected one of limits, exempt and block"),
        ({**IP, "exempt": True, "block": True}, "override: expected one of limits, exempt and block"),
        ({**IP, "limits": "5/mfoo"}, "--limits: '5/mfoo': unknown period 'mfoo'"),
        (
            {**IP, "limits": "5/minute max_delay 2 using gcra"},
            "--limits: '5/minute max_delay 2 using gcra': unknown word",
        ),
        ({**IP, "limits": ["5/minute"]}, "--limits: got ['5/minute'], expected text"),
        ({**IP, "exempt": True, "rule": "lgin"}, "--rule: got 'lgin', expected one of app, login, default"),
        ({**IP, "exempt": True, "duration": 0}, "--for: got 0 seconds, expected more than 0 and at most a year"),
        ({**IP, "exempt": True, "duration": 367 * DAY}, "--for: got 31708800.0 seconds"),
        ({**IP, "exempt": True, "duration": True}, "--for: got True seconds"),
        ({**IP, "exempt": True, "note": "two\nlines"}, "--note: got 'two\\nlines', expected at most 500 characters"),
        ({**IP, "exempt": True, "by": "x" * 501}, "--by: got 'xxx"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_set(
    arguments: Mapping[str, Any], problem: str, settings: Mapping[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        admin.set_override(settings, **arguments)
    assert str(caught.value).startswith(problem)
    assert admin.overrides(settings).overrides == []


def test_a_store_in_memory_is_refused() -> None:
    for change in (
        lambda: admin.set_override({"limits": "1/hour"}, **IP, exempt=True),
        lambda: admin.switch({"limits": "1/hour"}, "off"),
        lambda: admin.overrides({"limits": "1/hour"}),
    ):
        with pytest.raises(StoreError, match="a store that processes share, such as redis://"):
            change()


def test_a_second_override_of_a_client_and_rule_replaces_the_first(settings: Mapping[str, Any]) -> None:
    admin.set_override(settings, **IP, exempt=True)
    admin.set_override(settings, **IP, rule="login", block=True)
    admin.set_override(settings, **IP, limits="9/hour")
    admin.set_override(settings, **IP, rule="@search", exempt=True)
    assert whos(settings) == [
        ("ip=192.0.2.7", "login", "block"),
        ("ip=192.0.2.7", None, "limits"),
        ("ip=192.0.2.7", "@search", "exempt"),
    ]


def test_what_ends_is_gone(settings: Mapping[str, Any], now: list[float]) -> None:
    admin.set_override(settings, **IP, exempt=True, duration=60.0)
    now[0] += 59.9
    assert len(admin.overrides(settings).overrides) == 1
    now[0] += 0.1
    assert admin.overrides(settings).overrides == []


def test_clearing_names_one_thing(settings: Mapping[str, Any]) -> None:
    first = admin.set_override(settings, **IP, exempt=True)
    second = admin.set_override(settings, user="bob", exempt=True)
    with pytest.raises(ConfigError, match="override: expected one of an id, a client, and everything"):
        admin.clear_override(settings)
    with pytest.raises(ConfigError, match="override: expected one of an id, a client, and everything"):
        admin.clear_override(settings, id=first.id, everything=True)
    assert admin.clear_override(settings, id="unknown").overrides == []
    assert admin.clear_override(settings, id=first.id).overrides == [first]
    admin.switch(settings, "off", rule="login")
    cleared = admin.clear_override(settings, everything=True).overrides
    assert [one.id for one in cleared][:1] == [second.id]
    assert admin.overrides(settings).overrides == []
    assert admin.clear_override(settings, everything=True).overrides == []
    assert [one.what for one in admin.changes(settings).changes] == [
        "clear everything",
        "switch off login for 1d",
        "clear exempt ip=192.0.2.7",
        "exempt user=bob for 1d",
        "exempt ip=192.0.2.7 for 1d",
    ]


def test_a_switch_is_one_of_everyone_and_ends(settings: Mapping[str, Any], now: list[float]) -> None:
    with pytest.raises(ConfigError, match="switch: got 'of', expected off, shadow or on"):
        admin.switch(settings, "of")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError, match="--rule: got 'x', expected one of app, login, default"):
        admin.switch(settings, "off", rule="x")
    (one,) = admin.switch(settings, "off", duration=900.0).overrides
    assert (one.who, one.rule, one.action, one.until) == ("everyone", None, "off", now[0] + 900.0)
    assert [each.action for each in admin.switch(settings, "shadow", rule="login").overrides] == ["off", "shadow"]
    assert [each.action for each in admin.switch(settings, "shadow").overrides] == ["shadow", "shadow"]
    assert [each.rule for each in admin.switch(settings, "on", rule="login").overrides] == [None]
    admin.set_override(settings, **IP, exempt=True)
    assert admin.switch(settings, "on").overrides == []
    assert whos(settings) == [("ip=192.0.2.7", None, "exempt")]


def test_changes_say_who_what_when_and_why_and_can_be_undone(settings: Mapping[str, Any], now: list[float]) -> None:
    first = admin.set_override(settings, **IP, exempt=True, note="ticket 1", by="eve", duration=600.0)
    now[0] += 1
    admin.set_override(settings, **IP, limits="9/hour", rule=None, by="bob", duration=5400.0)
    now[0] += 1
    newest, oldest = admin.changes(settings).changes
    assert (oldest.at, oldest.by, oldest.what, oldest.note, oldest.undone) == (
        *(1_000_000_000.0, "eve", "exempt ip=192.0.2.7 for 10m", "ticket 1"),
        False,
    )
    assert (newest.what, newest.by) == ("limits 9/hour for ip=192.0.2.7 for 90m", "bob")
    undoing = admin.undo(settings, newest.id, note="wrong", by="eve")
    assert (undoing.what, undoing.note, undoing.by) == ("undo limits 9/hour for ip=192.0.2.7 for 90m", "wrong", "eve")
    assert admin.overrides(settings).overrides == [first]
    assert [one.undone for one in admin.changes(settings).changes] == [False, True, False]
    with pytest.raises(ConfigError, match=NOTHING_LEFT):
        admin.undo(settings, newest.id)
    assert admin.undo(settings, undoing.id).what == "undo undo limits 9/hour for ip=192.0.2.7 for 90m"
    assert whos(settings) == [("ip=192.0.2.7", None, "limits")]
    with pytest.raises(ConfigError, match="undo: got 'x', expected the id of a change"):
        admin.undo(settings, "x")


def test_an_undo_leaves_what_was_changed_again(settings: Mapping[str, Any], now: list[float]) -> None:
    admin.set_override(settings, **IP, exempt=True, duration=60.0)
    admin.clear_override(settings, **IP)
    cleared = admin.changes(settings).changes[0]
    admin.set_override(settings, **IP, block=True)
    with pytest.raises(ConfigError, match=NOTHING_LEFT):
        admin.undo(settings, cleared.id)
    admin.clear_override(settings, **IP)
    now[0] += 60.0
    with pytest.raises(ConfigError, match=NOTHING_LEFT):
        admin.undo(settings, cleared.id)


def test_changes_are_kept_for_30_days(settings: Mapping[str, Any], now: list[float]) -> None:
    admin.switch(settings, "off")
    now[0] += 30 * DAY
    assert len(admin.changes(settings).changes) == 1
    now[0] += 1
    assert admin.changes(settings).changes == []


@pytest.mark.parametrize(
    "bounds", [{"MAX_ENTRIES": 2, "MAX_BYTES": 1_000_000}, {"MAX_ENTRIES": 10_000, "MAX_BYTES": 300}]
)
def test_the_set_is_bounded(
    bounds: Mapping[str, int], settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (override_entries.MAX_ENTRIES, override_entries.MAX_BYTES) == (10_000, 1_000_000)
    for name, bound in bounds.items():
        monkeypatch.setattr(f"ratelimit_mw.admin.override_set.{name}", bound)
    for user in ("a", "b"):
        admin.set_override(settings, user=user, exempt=True, by="x")
    with pytest.raises(
        ConfigError, match=r"^override: the store would have 3 overrides of \d+ bytes, expected at most"
    ):
        admin.set_override(settings, user="c", exempt=True, by="x")
    assert [one.who for one in admin.overrides(settings).overrides] == ["user=a", "user=b"]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [({}, {"key_secret": SECRET}), ({"key_secret": SECRET}, {}), ({"key_secret": SECRET}, {"key_secret": SECRET * 2})],
)
def test_a_set_with_another_mac_is_not_taken_over(
    writer: Mapping[str, Any], reader: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    theirs, ours = {**settings, **writer}, {**settings, **reader}
    admin.set_override(theirs, **IP, exempt=True)
    calls: list[Callable[[], Any]] = [
        lambda: admin.overrides(ours),
        lambda: admin.set_override(ours, **IP, block=True),
        lambda: admin.switch(ours, "off"),
        lambda: admin.clear_override(ours, **IP),
    ]
    for call in calls:
        with pytest.raises(
            ConfigError, match=r"^key_secret: the overrides in the store have a MAC of another key_secret"
        ):
            call()
    if reader:
        assert admin.changes(ours).changes == []  # theirs could set anything when it is undone
    assert admin.clear_override(ours, everything=True).overrides == []
    admin.set_override(ours, **IP, block=True)
    assert whos(ours) == [("ip=192.0.2.7", None, "block")]
