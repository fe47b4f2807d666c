"""Tests what `data.json` shows of what processes have reported."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from msgspec import json

from dashboard.asked import SECRET, SIGNED_IN, data, made, post
from dashboard.reported import NOW, info, report
from ratelimit_mw import StoreError
from ratelimit_mw.admin.buckets import find_buckets
from ratelimit_mw.admin.target import DescribedRequest, Target
from ratelimit_mw.dashboard.preview import preview
from ratelimit_mw.dashboard.reader import INTERVAL, Reader
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.live import AtWork
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.inventory import Refusal
from ratelimit_mw.stores.live import Report, Wanted
from ratelimit_mw.stores.local_board import LocalBoard
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.stores.url import open_store
from redis_servers import RedisServer
from web.plain_request import PlainRequest

pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")

HOSTILE = "<img src=x onerror=alert(1)>"
TEXT = """
limits = "100/minute"
store = "{store}"
store_timeout = 5.0
metrics = true
remember_refused = 100
plain_keys = true

[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = "5/minute; 20/hour"
key = "ip"

[[rules]]
name = "search"
path = "/search"
shadow = true
limits = "3/minute"
"""


@pytest.fixture(params=["server", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        SQLiteStore(tmp_path / "limits.db").close()
        return f"sqlite://{tmp_path}/limits.db"
    servers: Mapping[str, RedisServer] = request.getfixturevalue("redis_servers")
    server = next(iter(servers.values()))
    server.flush()
    return server.url


class World:
    """A dashboard, its store, and the time."""

    def __init__(self, url: str, folder: Path) -> None:
        self.file = folder / "shop.toml"
        self.file.write_text(TEXT.format(store=url))
        self.app = made("asgi", str(self.file), secret=SECRET, write=True)
        self.now = NOW + 60.5
        self.reader: Reader = self.app.page.reader
        vars(self.reader)["_clock"] = lambda: self.now
        self.store: Any = open_store(url, 5.0)

    def data(self, query: str = "seconds=300") -> Any:
        self.reader.forget_changes()
        return data(self.app, query)


@pytest.fixture
def world(url: str, tmp_path: Path) -> Iterator[World]:
    found = World(url, tmp_path)
    yield found
    found.store.close()
    found.reader.close()


def rules(shown: Any) -> Mapping[str, Any]:
    return {one["rule"]: one for one in shown["rules"]}


def test_sums_and_series_are_those_of_all_processes(world: World) -> None:
    world.store.add_live([report({"login": (5, 3, 0), "default": (7, 0, 2)}, NOW + 58)])
    world.store.add_live([report({"login": (1, 1, 0), HOSTILE: (2, 0, 0)}, NOW + 59, "two")])
    shown = world.data("seconds=5")
    assert shown["series"] == [
        [NOW + 55, 0, 0],
        [NOW + 56, 0, 0],
        [NOW + 57, 0, 0],
        [NOW + 58, 12, 3],
        [NOW + 59, 3, 1],
    ]
    counted = {name: [one["admitted"], one["refused"], one["shadow"]] for name, one in rules(shown).items()}
    assert counted == {"login": [6, 4, 0], "default": [7, 0, 2], "search": [0, 0, 0], HOSTILE: [2, 0, 0]}
    assert shown["rules"][0]["rule"] == "login"
    assert (shown["processes"], shown["processes_known"], shown["digests"]) == (2, 2, ["c45ec6ea"])
    assert world.data("seconds=300&rule=login")["series"][-2:] == [[NOW + 58, 5, 3], [NOW + 59, 1, 1]]
    hour = world.data("seconds=3600")
    assert (len(hour["series"]), hour["series"][-1]) == (60, [NOW, 15, 4])
    assert len(world.data("seconds=86400")["series"]) == 1440
    assert (shown["name"], shown["store"]["state"], shown["problem"]) == ("shop", "ok", None)


def test_a_process_that_is_late_on_a_busy_host_is_not_missing(world: World) -> None:
    world.store.add_live([report({}, NOW + 60)])
    world.store.add_live([report({}, NOW + 50, "two")])
    for now, processes, said in ((60.0, 2, None), (60.5, 1, "1 process does not report: 1 of 2 are here.")):
        world.now = NOW + now
        shown = world.data()
        assert (shown["processes"], shown["problem"] and shown["problem"]["text"]) == (processes, said)


def test_the_sentence_has_the_rate_of_the_last_minute_whatever_a_viewer_looks_at(world: World) -> None:
    now = int(time.time())
    world.now = now + 0.5
    key = "{ip=192.0.2.7}:login"
    attack = [report({"login": (0, 6, 0)}, now - 62 + second, "one", second + 1) for second in range(60)]
    attack[-1] = report({"login": (0, 6, 0)}, now - 3, "one", 60, clients={key: (0, 6, 0)})
    world.store.add_live(attack)
    world.store.add_refused({key: 7}, [Refusal(key, "5/60s using gcra", now, 38.0, "POST", "/login")])
    for clients in (600, 3600):
        shown = world.data(f"seconds=300&clients={clients}")
        assert shown["problem"]["more"] == "192.0.2.7 is refused 6.0 a second."
    assert shown["refused_most"][0]["spark"] == [0] * 19 + [6]


def test_the_series_has_no_gap_and_no_second_twice_while_a_process_is_replaced(world: World) -> None:
    seen: dict[int, list[int]] = {}
    for second in range(40):
        world.now = NOW + 100 + second + 1.5
        if not 12 <= second < 20:  # then no process runs
            process = "old" if second < 12 else "new"
            world.store.add_live([report({"login": (10, 1, 0)}, NOW + 100 + second, process, second + 1)])
        for at, admitted, refused in world.data("seconds=60")["series"]:
            assert seen.setdefault(at, [admitted, refused]) == [admitted, refused]
    shown = world.data("seconds=40")["series"]
    assert [row[0] for row in shown] == list(range(NOW + 100, NOW + 140))
    assert [row[1] for row in shown] == [10] * 12 + [0] * 8 + [10] * 20


def test_the_last_second_is_shown_once_processes_have_reported_it(world: World) -> None:
    for now, last in ((60.2, 58), (60.25, 59), (61.2, 59), (61.3, 60)):
        world.now = NOW + now
        assert world.data("seconds=1")["series"] == [[NOW + last, 0, 0]]


def test_the_seconds_of_an_outage_are_shown_once_processes_report_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: float) -> None:
        raise StoreError("away")

    world.data()
    with monkeypatch.context() as patch:
        patch.setattr(world.reader, "_read_counts", fails)
        world.now = NOW + 100.5
        assert world.data()["store"]["state"] == "away"
    world.now = NOW + 101.5  # back, before the processes know it
    assert world.data()["store"]["state"] == "ok"
    world.store.add_live([report({"login": (4, 0, 0)}, NOW + 70)])
    world.now = NOW + 112.4
    assert [NOW + 70, 4, 0] in world.data()["series"]


def test_a_rule_is_described_as_it_is_written(world: World) -> None:
    found = rules(world.data())
    shown = {name: found["login"][name] for name in ("limits", "match", "key", "where", "mode")}
    assert shown == {
        "limits": "5/minute; 20/hour",
        "match": "POST /login",
        "key": "ip",
        "where": "rules[0] of shop.toml",
        "mode": "on",
    }
    assert (found["search"]["mode"], found["default"]["where"]) == ("shadow", "limits of shop.toml")


def test_refused_clients_and_their_requests_are_shown(world: World) -> None:
    now = world.now = time.time()
    latest = [
        Refusal("{ip=192.0.2.7}:login", "5/60s using gcra", now, 38.0, "POST", "/login"),
        Refusal("{ip=192.0.2.7}:login", "5/60s using gcra", now, 37.5, "POST", f"/{HOSTILE}"),
        Refusal("{user=\udc80}:login", "5/60s using gcra", now, 1.0),
    ]
    world.store.add_refused({"{ip=192.0.2.7}:login": 40, "{user=\udc80}:login": 1}, latest)
    shown = world.data()
    assert [(one["key"], one["rule"], one["refused"]) for one in shown["refused_most"]] == [
        ("ip=192.0.2.7", "login", 40),
        ("user=?", "login", 1),
    ]
    assert shown["refused_most"][0]["free_in"] == pytest.approx(37.5)
    assert [(one["method"], one["path"], one["key"]) for one in shown["refusals"]] == [
        ("", "", "user=?"),
        ("POST", f"/{HOSTILE}", "ip=192.0.2.7"),
        ("POST", "/login", "ip=192.0.2.7"),
    ]
    assert shown["limited"] == {"clients": 2, "rule": "login", "of_rule": 2}


def test_fifty_viewers_cost_one_read_a_second(world: World) -> None:
    now = [100.0]
    vars(world.reader)["_monotonic"] = lambda: now[0]
    world.reader._due = 0.0  # by the clock of this test
    for second in range(1, 4):
        threads = [threading.Thread(target=world.reader.snapshot) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert world.reader.reads == second
        now[0] += INTERVAL


def test_while_the_store_is_away_the_page_shows_what_was_read_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.add_live([report({"login": (5, 3, 0)}, NOW + 58)])
    world.data()

    def fails(*_: object) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(type(world.reader), "_read_counts", fails)
    away = world.now = NOW + 61.5
    for _ in range(2):
        shown = world.data("seconds=5")
        assert shown["store"]["state"] == "away"
        assert shown["store"]["since"] == away
        assert "so a client may get up to 1 x its quota" in shown["store"]["meaning"]
        assert [NOW + 58, 5, 3] in shown["series"]
        world.now += 1
    assert shown["problem"]["kind"] == "store"
    monkeypatch.undo()
    vars(world.reader)["_clock"] = lambda: world.now
    assert world.data()["store"]["state"] == "ok"


def test_a_process_that_cannot_reach_the_store_says_so(world: World) -> None:
    text = json.encode(info("one", NOW + 60, away=NOW + 30.0, without=7))
    world.store.add_live([Report("one", 1, NOW + 60, text, {})])
    store = world.data()["store"]
    assert (store["state"], store["since"], store["without"]) == ("away", NOW + 30.0, 7.0)


def test_requests_at_work_are_those_of_all_processes(world: World) -> None:
    """With a latency goal; what is reached is that of the slowest process."""
    for process, reached in (("one", 0.2), ("two", 0.4)):
        text = json.encode(info(process, NOW + 60, at_work=AtWork(5, 60, 0.25, reached)))
        world.store.add_live([Report(process, 1, NOW + 60, text, {})])

    assert world.data()["at_work"] == {"now": 10, "limit": 120, "goal": 0.25, "reached": 0.4}


def test_changes_are_made_and_undone(world: World) -> None:
    world.now = time.time()
    done = post(world.app, "change", {"do": "switch", "rule": "login", "state": "shadow", "for": 900, "note": "try"})
    assert done.status == 200, done
    assert done.json["done"] == "switch shadow login for 15m"
    shown = world.data()
    assert rules(shown)["login"]["mode"] == "shadow"
    assert rules(shown)["login"]["until"] == pytest.approx(world.now + 900, abs=60)
    first = shown["changes"][0]
    assert (first["by"], first["what"], first["note"]) == ("dashboard", "switch shadow login for 15m", "try")
    assert (first["undone"], first["can_undo"]) == (False, True)
    assert post(world.app, "change", {"do": "undo", "id": done.json["id"]}).status == 200
    shown = world.data()
    assert (rules(shown)["login"]["mode"], shown["overrides"]) == ("on", [])
    assert [one["undone"] for one in shown["changes"]] == [False, True]
    assert post(world.app, "change", {"do": "undo", "id": done.json["id"]}).status == 409


OVERRIDES: list[tuple[Mapping[str, Any], str]] = [
    ({"who": {"ip": "192.0.2.0/24"}, "action": "block"}, "block ip=192.0.2.0/24 for 1h"),
    ({"who": {"ip": "192.0.2.9"}, "action": "exempt", "rule": "login"}, "exempt ip=192.0.2.9 in login for 1h"),
    ({"who": {"key": "ip=192.0.2.7"}, "action": "block"}, "block key=ip=192.0.2.7 for 1h"),
    (
        {"who": {"header": "X-Api-Key: abc"}, "action": "limits", "limits": "9/minute"},
        "limits 9/minute for header:x-api-key=abc for 1h",
    ),
]


@pytest.mark.parametrize(("asked", "what"), OVERRIDES, ids=str)
def test_a_client_is_blocked_exempted_or_given_other_limits(world: World, asked: Mapping[str, Any], what: str) -> None:
    world.now = time.time()
    done = post(world.app, "change", {"do": "override", "for": 3600, "note": "4711", **asked})
    assert (done.status, done.json["done"]) == (200, what)
    (entry,) = world.data()["overrides"]
    assert (entry["action"], entry["note"], entry["by"]) == (asked["action"], "4711", "dashboard")
    assert post(world.app, "change", {"do": "clear", "id": entry["id"]}).status == 200
    assert world.data()["overrides"] == []
    assert post(world.app, "change", {"do": "clear", "id": entry["id"]}).status == 409


def test_a_client_that_is_blocked_is_shown_as_such(world: World) -> None:
    now = world.now = time.time()
    world.store.add_refused({"{ip=192.0.2.7}:login": 40, "{ip=198.51.100.20}:login": 1}, [])
    asked = {"who": {"ip": "192.0.2.0/24"}, "action": "block", "rule": "login", "for": 60, "note": "4711"}
    done = post(world.app, "change", {"do": "override", **asked})
    assert done.status == 200
    blocked = [(one["key"], one["blocked"]) for one in world.data()["refused_most"]]
    assert blocked == [("ip=192.0.2.7", done.json["id"]), ("ip=198.51.100.20", None)]
    looked = post(world.app, "look", {"key": "ip=192.0.2.7", "rule": "login"}).json
    assert [(one["action"], one["who"], one["note"]) for one in looked["overrides"]] == [
        ("block", "ip=192.0.2.0/24", "4711")
    ]
    assert looked["why"] == ["Nothing is counted for this client."]
    assert post(world.app, "look", {"key": "ip=192.0.2.7", "rule": "search"}).json["overrides"] == []
    world.store.add_live([report({"blocklist": (0, 9, 0)}, int(now) - 3)])
    post(world.app, "change", {"do": "switch", "state": "shadow", "for": 60})
    shown = rules(world.data())
    assert {name: one["mode"] for name, one in shown.items()} == {
        "blocklist": "blocklist",  # a switch lifts no block
        "login": "shadow",
        "search": "shadow",
        "default": "shadow",
    }
    assert shown["blocklist"]["match"] == "clients that are blocked, and those of the blocklist"


def test_a_rule_has_other_limits_for_everyone(world: World) -> None:
    world.now = time.time()
    asked = {"do": "limits", "rule": "login", "limits": "1/minute using fixed_window", "for": 3600}
    done = post(world.app, "change", asked)
    assert (done.status, done.json["done"]) == (
        200,
        "limits 1/minute using fixed_window for everyone in login for 1h",
    )
    assert rules(world.data())["login"]["limits"] == "1/minute using fixed_window"
    looked = {"request": "POST /login", "client": "ip 198.51.100.20"}
    found = post(world.app, "look", looked).json
    assert [one["limit"] for one in found["buckets"]] == ["1/60s using fixed_window"]
    assert found["overrides"][0]["who"] == "everyone"
    own = {"do": "override", "who": {"ip": "198.51.100.20"}, "action": "limits", "limits": "7/minute using gcra"}
    assert post(world.app, "change", own).status == 200
    assert [one["limit"] for one in post(world.app, "look", looked).json["buckets"]] == ["7/60s using gcra"]
    gate = Gate(Settings.load(world.file))
    request = PlainRequest("/login", "POST", client="198.51.100.21")
    verdicts = [gate.admit(request), gate.admit(request)]
    assert [one is not None and one.allowed for one in verdicts] == [True, False]
    gate.close()
    assert post(world.app, "change", {"do": "undo", "id": done.json["id"]}).status == 200
    assert rules(world.data())["login"]["limits"] == "5/minute; 20/hour"
    for wrong in ({"rule": "login"}, {"limits": "1/minute"}, {"rule": "login", "limits": "many"}):
        assert post(world.app, "change", {"do": "limits", **wrong}).status == 400


def test_a_client_is_looked_at_and_reset(world: World) -> None:
    asked = {"request": "POST /login", "client": "ip 198.51.100.20"}
    found = find_buckets(Target.of(world.file), DescribedRequest("POST /login", "198.51.100.20"))
    for _ in range(5):
        world.store.take(found.charges)
    looked = post(world.app, "look", asked).json
    first = looked["buckets"][0]
    assert (first["rule"], first["quota"], first["remaining"], first["key"]) == ("login", 5, 0, "ip=198.51.100.20")
    assert first["retry_after"] > 0
    assert looked["why"][0] == "login matches: POST /login, rules[0] of shop.toml."
    by_key = post(world.app, "look", {"key": "ip=198.51.100.20", "rule": "login"}).json
    assert [one["remaining"] for one in by_key["buckets"]] in ([0, 15], [15, 0])
    done = post(world.app, "change", {"do": "reset", **asked, "note": "let in"})
    assert (done.status, done.json["done"]) == (200, "reset ip 198.51.100.20: 2 buckets")
    assert [one["remaining"] for one in post(world.app, "look", asked).json["buckets"]] == [5, 20]
    assert world.data()["changes"][0]["can_undo"] is False


@pytest.mark.parametrize(
    "asked", [{"request": "login"}, {"request": 7}, {"request": "POST /login", "client": "ip x"}, {}], ids=str
)
def test_a_mistake_in_what_was_typed_is_an_answer(world: World, asked: Any) -> None:
    got = post(world.app, "look", asked)
    assert (got.status, list(got.json)) == (200, ["mistake"])


WRONG_CHANGES: list[Any] = [
    {},
    {"do": "drop"},
    {"do": "switch", "state": "maybe"},
    {"do": "switch", "state": "off", "rule": "nothing"},
    {"do": "switch", "state": "off", "for": "1h"},
    {"do": "switch", "state": "off", "for": -1},
    {"do": "override", "who": {"ip": "192.0.2.7", "user": "bob"}, "action": "block"},
    {"do": "override", "who": {"port": "1"}, "action": "block"},
    {"do": "override", "who": {"ip": "192.0.2.7"}, "action": "ban"},
    {"do": "override", "who": {"ip": "192.0.2.7"}, "action": "limits", "limits": "many"},
    {"do": "switch", "state": "off", "note": "x\ny"},
    {"do": "undo", "id": "none"},
]


@pytest.mark.usefixtures("with_codes")
def test_an_error_has_its_code(world: World) -> None:
    got = post(world.app, "change", {"do": "drop"})
    text = "do: got 'drop', expected one of switch, limits, override, clear, reset, undo"
    assert got.json == {"error": text, "code": "RL-072"}


@pytest.mark.parametrize("asked", WRONG_CHANGES, ids=str)
def test_a_wrong_change_is_400_and_changes_nothing(world: World, asked: Any) -> None:
    got = post(world.app, "change", asked)
    assert (got.status, list(got.json)) == (400, ["error"])
    assert world.data()["changes"] == []


def test_a_preview_replays_the_sample(world: World) -> None:
    for second in range(20):  # one client sends 2 a second, another one every 10 seconds
        clients = {"{ip=192.0.2.7}:login": (1, 1, 0)} | (
            {"{ip=192.0.2.8}:login": (1, 0, 0)} if second % 10 == 0 else {}
        )
        counts = {"login": (2 + 2 * (second % 10 == 0), 2, 0)}  # the sample has half of all
        world.store.add_live([report(counts, NOW + 30 + second, number=second + 1, clients=clients)])
    world.data()
    shown = post(world.app, "preview", {"rule": "login", "state": "on", "limits": "10/minute using fixed_window"}).json
    assert (shown["requests"], shown["sampled"], shown["clients"]) == (84, 42, 4)
    assert shown["now"] == {"refused": 40, "clients": 2}
    assert shown["then"] == {"refused": 60, "clients": 2}
    assert shown["peaks"] == [[2, 1], [40, 1]]
    assert (shown["period"], shown["quota"]) == (60.0, 10)
    assert shown["toml"].splitlines() == [
        "[[rules]]",
        'name = "login"',
        'path = "/login"',
        'methods = ["POST"]',
        'limits = "10/minute using fixed_window"',
    ]
    off = post(world.app, "preview", {"rule": "login", "state": "off"}).json
    assert (off["then"], off["toml"].splitlines()[-1]) == ({"refused": 0, "clients": 0}, "exempt = true")
    assert post(world.app, "preview", {"rule": "login", "state": "on", "limits": "5/minut"}).json["mistake"]


def test_a_preview_leaves_out_clients_that_were_not_always_in_the_sample() -> None:
    board = LocalBoard()
    clients = {f"{{ip=192.0.2.{number}}}:login": (1, 0, 0) for number in range(20)}
    text = json.encode(info("one", NOW + 60, below=1 << 31))
    board.add_live([report({"login": (20, 0, 0)}, NOW + 30, clients=clients)])
    board.add_live([Report("one", 2, NOW + 60, text, {})])
    settings = Settings(limits="5/minute", metrics=True)
    reader = Reader(Target(settings, RuleSet(settings)), clock=lambda: NOW + 60.5)
    reader._board, reader._is_open = board, True  # without an app
    sampled = preview(reader.snapshot(), "login", "on", "5/minute")["sampled"]
    assert sampled == sum(crc32(key.encode()) < 1 << 31 for key in clients)
    assert 0 < sampled < 20
    assert board.read_live(Wanted({})).rows == {"seconds": {}, "minutes": {}, "clients": {}}


def test_a_program_may_ask_with_the_secret_only(world: World) -> None:
    fields = ["at", "processes", "store", "rules", "series", "refused_most"]
    assert [field in data(world.app, **SIGNED_IN) for field in fields] == [True] * 6


@pytest.mark.parametrize(
    ("bounds", "p99"),
    [
        ({}, None),
        ({"0.001": 99, "0.1": 1}, 0.001),
        ({"0.001": 98, "0.1": 2}, 0.1),
        ({"0.0005": 1}, 0.0005),
        ({"0.001": 1, "+Inf": 1}, 5.0),  # the timeout
    ],
)
def test_the_time_of_99_of_100_calls_is_that_of_all_processes(
    bounds: Mapping[str, int], p99: float | None, world: World
) -> None:
    for process, (label, number) in zip(("one", "two"), bounds.items(), strict=False):
        world.store.add_live([report({}, NOW + 59, process, bounds={label: number})])
    world.store.add_live([report({}, NOW + 50, "late", bounds={"1": 1000})])
    assert world.data()["store"]["p99"] == p99


def test_settings_that_a_process_has_since_are_a_change(world: World) -> None:
    world.store.add_live([report({}, NOW + 59, in_force=NOW - 40.0)])
    world.store.add_live([report({}, NOW + 59, "two", in_force=NOW - 50.0)])
    first = {"id": "settings c45ec6ea", "at": NOW - 50, "by": "deployment", "what": "settings c45ec6ea", "note": ""}
    first |= {"undone": False, "can_undo": False}
    assert world.data()["changes"] == [first]
    world.store.add_live([report({}, NOW + 59, "two", number=2, ends=True)])
    world.store.add_live([report({}, NOW + 59, "three", in_force=NOW + 50.0, digest="0a1b2c3d")])
    found = [(one["at"], one["what"]) for one in world.data()["changes"]]
    assert found == [(NOW + 50, "settings 0a1b2c3d"), (NOW - 50, "settings c45ec6ea")]


def test_a_client_that_is_refused_on_many_paths_may_be_an_office(world: World) -> None:
    now = world.now = time.time()
    for client, paths in (("192.0.2.7", 5), ("192.0.2.8", 4)):
        key = f"{{ip={client}}}:login"
        some = [Refusal(key, "5/60s", now, 1.0, "GET", f"/{number}?at={number}") for number in range(paths)]
        world.store.add_refused({key: paths}, [*some, some[0]])
    found = {one["key"]: one["note"] for one in world.data()["refused_most"]}
    assert found == {"ip=192.0.2.7": "5 paths lately: an office?", "ip=192.0.2.8": ""}
