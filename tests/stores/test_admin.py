"""Tests the commands that read and change the store of an app: `peek`, `reset`, `keys`, `top` and `tail`."""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from redis import Redis

from ratelimit_mw import Charge, ConfigError, FixedWindow, MemoryStore, StoreError, admin
from ratelimit_mw.admin.listing import Pace
from ratelimit_mw.admin.output import duration, retry
from ratelimit_mw.admin.target import DescribedRequest
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.cli import main
from ratelimit_mw.core.identity import rule_spellings
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.inventory import Refusal
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock
from redis_cluster import RedisCluster
from redis_sentinels import RedisSentinels
from redis_servers import RedisServer, free_port

pytestmark = pytest.mark.one_redis

PATIENT = 5.0  # seconds
HOUR = "5/3600s using fixed_window"
DAY = "20/86400s using gcra"
POLICY: dict[str, Any] = {
    "limits": "100/minute",
    "store_timeout": PATIENT,
    "remember_refused": 100,
    "plain_keys": True,
    "rules": [
        {
            "name": "login",
            "path": "/login",
            "methods": ["POST"],
            "limits": ["5/hour using fixed_window", DAY],
            "key": "ip",
        }
    ],
}
LOGIN = {"request": "POST /login", "ip": "192.0.2.7"}


ENDPOINTS = (
    "limits that are attached to endpoints are not in a settings file: `keys` lists their buckets, `reset --key` "
    "forgets them, and `--app MODULE:APP`, `flask ratelimit` and `manage.py ratelimit` find them\n"
)
GATES: list[Gate] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while GATES:
        GATES.pop().close()


class App:
    """An app with a store on a server. `admit` sends the app a request."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.settings = self.settings_of(url, **settings)
        self.gate = Gate(self.settings)
        GATES.append(self.gate)

    @staticmethod
    def settings_of(url: str, **settings: Any) -> Settings:
        return Settings(**{**POLICY, "store": url, **settings})

    def admit(self, line: str = "POST /login", ip: str = "192.0.2.7", **words: Any) -> bool:
        request = DescribedRequest(line, ip, **words).request()
        verdict = self.gate.admit(request)
        for end in request.on_end or ():
            end(None)
        return verdict is None or verdict.allowed

    def admit_as_another_process(self) -> bool:
        with closing(Gate(self.settings)) as gate:
            verdict = gate.admit(DescribedRequest("POST /login", "192.0.2.7").request())
        return verdict is not None and verdict.allowed


def admin_refusal(key: str, limit: str = HOUR) -> Refusal:
    return Refusal(key, limit, time.time(), 60.0)


@pytest.fixture
def app(redis_server: RedisServer) -> App:
    return App(redis_server.url)


def timeless(text: str) -> str:
    """Leave out the numbers that depend on how long a test has run."""
    return re.sub(r"retry in \d+ \w+", "retry in TIME", text)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def file(app: App, tmp_path: Path) -> str:
    return write(tmp_path, app.settings.store)


def write(folder: Path, url: str, **settings: Any) -> str:
    path = folder / "limits.json"
    path.write_text(json.dumps({**POLICY, "store": url, **settings}), "utf-8")
    return str(path)


def exhaust_and_reset(url: str) -> None:
    """Exhaust a limit, list its buckets, and reset them: the same steps for every kind of store."""
    app = App(url)
    assert [app.admit() for _ in range(7)] == [True] * 5 + [False] * 2
    found = admin.peek(app.settings, **LOGIN).buckets
    assert [(one.rule, one.limit, one.key, one.remaining) for one in found] == [
        ("login", HOUR, "ip=192.0.2.7", 0),
        ("login", DAY, "ip=192.0.2.7", 15),
    ]
    assert 3500 < found[0].retry_after <= 3600
    assert found[1].retry_after == 0.0
    limited = admin.keys(app.settings, limited=True)
    assert [(one.key, one.limit, one.remaining) for one in limited.keys] == [("ip=192.0.2.7", HOUR, 0)]
    assert limited.seen == 1.0
    listed = admin.keys(app.settings)
    assert sorted((one.key, one.limit, one.remaining) for one in listed.keys) == [
        ("ip=192.0.2.7", DAY, 15),
        ("ip=192.0.2.7", HOUR, 0),
    ]
    app.gate.close()
    clients = admin.top(app.settings).clients
    assert clients == [admin.RefusedClient("ip=192.0.2.7", "login", 2)]
    after = admin.reset(app.settings, **LOGIN)
    left = [(one.remaining, one.retry_after, one.reset_after) for one in after.buckets]
    assert (left, after.forgotten) == ([(5, 0.0, 0.0), (20, 0.0, 0.0)], 2)
    assert admin.reset(app.settings, **LOGIN).forgotten == 0
    assert app.admit_as_another_process()
    end = time.monotonic() + 60  # this process caches the refusal for a second
    while not app.admit():
        assert time.monotonic() < end
        time.sleep(0.05)
    app.gate.close()


def test_admin_lists_and_resets_buckets_on_a_server(redis_server: RedisServer) -> None:
    exhaust_and_reset(redis_server.url)


def test_admin_lists_and_resets_buckets_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/limits.db"
    exhaust_and_reset(url)
    file = write(tmp_path, url)
    described = ("--request", "POST /login", "--ip", "192.0.2.7")
    for words, told in (
        (("peek", file, *described), "ip=192.0.2.7"),
        (("keys", file), "ip=192.0.2.7"),
        (("top", file), "  login  ip=192.0.2.7\n"),
        (("tail", file, "--most", "1"), "ip=192.0.2.7\n"),
        (("reset", file, "--yes", *described), "2 buckets forgotten"),
    ):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert told in out
    assert "ip=192.0.2.7" not in run(capsys, "keys", file)[1]


@pytest.mark.parametrize("there", ["nothing", "broken"])
def test_commands_fail_without_a_valid_sqlite_file_and_create_none(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    path = folder / "limits.db"
    told = f"{path} does not exist; an app with this store creates it at its start"
    if there == "broken":
        path.write_bytes(b"SQLite format 3\0" * 1000)
        told = f"{path}: file is not a database"
    file = write(tmp_path, f"sqlite://{path}")
    described = ("--request", "POST /login", "--ip", "192.0.2.7")
    for words in (("peek", file, *described), ("keys", file), ("top", file), ("tail", file)):
        assert run(capsys, *words) == (2, "", f"ratelimit_mw: {told}\n")
        assert path.exists() is (there == "broken")
    assert run(capsys, "reset", file, "--yes", *described) == (2, "", f"ratelimit_mw: {told}\n")
    for call in (admin.keys, admin.top):
        with pytest.raises(StoreError, match=f"^{re.escape(told)}$"):
            call(file)
    assert [*folder.glob("*.broken")] == []


def test_admin_lists_and_resets_buckets_on_a_cluster(redis_cluster: RedisCluster) -> None:
    exhaust_and_reset(redis_cluster.url)


def test_admin_lists_and_resets_buckets_behind_sentinels(redis_server: RedisServer) -> None:
    with RedisSentinels(redis_server.binary) as sentinels:
        exhaust_and_reset(sentinels.url)


def by_endpoint(request: Any) -> str:
    """Return the key of a request, from a header."""
    return str(request.headers["x-shop"])


async def by_endpoint_later(request: Any) -> str:
    """Return the same key as `by_endpoint`, asynchronously."""
    return by_endpoint(request)


def tenfold(request: Any) -> int:
    """Return the cost of a request, which is less than the quota."""
    return 10


ONCE = "1/hour using fixed_window"
KINDS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # settings, and the description of a request
    "ip": ({"limits": ONCE, "key": "ip"}, {"ip": "2001:db8::1"}),
    "user": ({"limits": ONCE, "key": "user"}, {"user": "Zoë + co"}),
    "header": ({"limits": ONCE, "key": "header:x-shop"}, {"headers": ["X-Shop: 12"]}),
    "cookie": ({"limits": ONCE, "key": "cookie:sid"}, {"headers": {"Cookie": "a=b; sid=xyz"}}),
    "route": ({"limits": ONCE, "key": "route + ip"}, {"ip": "192.0.2.9"}),
    "all": ({"limits": ONCE, "key": "all"}, {}),
    "call": ({"limits": ONCE, "key": by_endpoint}, {"headers": ["X-Shop: 12"]}),
    "tier": (
        {"limits": {"free": ONCE, "gold": "1/hour using gcra"}, "tier": "header:x-plan", "key": "user"},
        {"user": "bob", "headers": ["X-Plan: gold"]},
    ),
    "host": (
        {"limits": [], "rules": [{"name": "h", "path": "/", "host": "a.example", "limits": ONCE, "key": "ip"}]},
        {"ip": "192.0.2.9", "host": "a.example"},
    ),
    "proxy": (
        {"limits": ONCE, "key": "ip", "trusted_proxies": ["10.0.0.0/8"]},
        {"ip": "10.0.0.1", "headers": ["X-Forwarded-For: 192.0.2.33"]},
    ),
    "cost": ({"limits": [{"limit": "15/hour using fixed_window", "cost": tenfold}], "key": "ip"}, {"ip": "192.0.2.9"}),
    "penalty": (
        {"limits": ONCE, "key": "ip", "app_limits": "1/hour", "penalty": "1 refusals per hour: 2 hours"},
        {"ip": "192.0.2.9"},
    ),
    "delayed": (
        {"limits": [{"limit": "1/hour using token_bucket", "max_delay": 0.01}], "key": "ip"},
        {"ip": "192.0.2.9"},
    ),
    "smooth": ({"limits": "1/hour using smooth max_burst 0", "key": "ip"}, {"ip": "192.0.2.9"}),
    "log": ({"limits": "1/hour using sliding_window_log", "key": "ip"}, {"ip": "192.0.2.9"}),
    "secret": (
        {"limits": ONCE, "key": "ip", "key_secret": "0123456789abcdef", "plain_keys": False},
        {"ip": "192.0.2.9"},
    ),
    "named": ({"limits": [{"limit": ONCE, "name": "hourly"}], "key": "ip"}, {"ip": "192.0.2.9"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_peek_and_reset_find_every_kind_of_key(redis_server: RedisServer, kind: str) -> None:
    options, words = KINDS[kind]
    app = App(redis_server.url, **{"rules": [], **options})
    others = {"ip": "", **words}
    line = "/"
    assert app.admit(line, **others)
    assert not app.admit(line, **others)
    before = admin.peek(app.settings, line, **words).buckets
    assert any(one.retry_after > 0 for one in before)
    assert (admin.keys(app.settings, limited=True).keys != []) == (kind != "cost")  # a single unit is left
    after = admin.reset(app.settings, line, **words).buckets
    assert [one.retry_after for one in after] == [0.0] * len(before)
    assert admin.keys(app.settings, limited=True).keys == []
    assert App(redis_server.url, **{"rules": [], **options}).admit(line, **others)
    app.gate.close()


def test_peek_awaits_an_asynchronous_key_function(redis_server: RedisServer) -> None:
    words: dict[str, Any] = {"headers": {"X-Shop": "12"}}
    settings = App(redis_server.url, rules=[], key=by_endpoint).settings
    later = App.settings_of(redis_server.url, rules=[], key=by_endpoint_later)
    (plain,), (awaited,) = (admin.peek(one, "/", **words).buckets for one in (settings, later))
    assert plain.key.endswith("=12")
    assert awaited.key.endswith("=12")


def test_keys_are_shown_as_hashes_without_plain_keys(redis_server: RedisServer) -> None:
    app = App(redis_server.url, plain_keys=False)
    app.admit()
    app.admit()
    (first, second) = admin.peek(app.settings, **LOGIN).buckets
    assert first.key == second.key
    assert len(first.key) == 32
    assert int(first.key, 16) >= 0
    assert {one.key for one in admin.keys(app.settings).keys} == {first.key}


def test_peek_shows_slots_in_use_and_reset_frees_them(redis_server: RedisServer) -> None:
    settings = {"rules": [], "limits": [], "concurrent": 2, "key": "ip"}
    app = App(redis_server.url, **settings)
    requests = [DescribedRequest("/", "192.0.2.7").request() for _ in range(3)]
    assert [bool(app.gate.admit(one)) for one in requests] == [True, True, False]
    (slots,) = admin.peek(app.settings, "/", ip="192.0.2.7").buckets
    assert (slots.limit, slots.remaining, slots.retry_after) == ("2 at once", 0, 1.0)
    (slots,) = admin.reset(app.settings, "/", ip="192.0.2.7").buckets
    assert (slots.remaining, slots.retry_after) == (2, 0.0)
    assert app.gate.admit(DescribedRequest("/", "192.0.2.7").request())


def test_peek_of_a_websocket_shows_message_limits(redis_server: RedisServer) -> None:
    app = App(redis_server.url, messages="3/minute", rules=[])
    found = admin.peek(app.settings, "/ws", ip="192.0.2.7").buckets
    assert [(one.rule, one.limit) for one in found] == [
        ("default", "100/60s using sliding_window_counter"),
        ("/messages", "3/60s using sliding_window_counter"),
    ]
    found = admin.peek(app.settings, "POST /ws", ip="192.0.2.7").buckets
    assert [one.rule for one in found] == ["default"]


def test_peek_keys_and_top_do_not_change_the_store(redis_server: RedisServer, tmp_path: Path, capsys: Any) -> None:
    has_switch = b"redis_version:6" not in redis_server.ask("INFO server").encode()
    options = ("--enable-debug-command", "yes") if has_switch else ()
    with RedisServer(redis_server.binary, *options) as server:
        app = App(server.url, concurrent=3)
        for line in ("POST /login", "/", "/?a"):
            for _ in range(3):
                app.admit(line)
        app.gate.close()
        before = server.ask("DEBUG DIGEST")
        file = write(tmp_path, server.url)
        for words in (
            ["peek", file, "--request", "POST /login", "--ip", "192.0.2.7"],
            ["peek", file, "--request", "POST /login", "--ip", "192.0.2.8"],
            ["keys", file],
            ["keys", file, "--limited", "--json"],
            ["top", file],
        ):
            assert run(capsys, *words)[0] == 0
        assert len(before) > 40
        assert server.ask("DEBUG DIGEST") == before


def test_every_redis_key_has_a_time_to_live(redis_server: RedisServer) -> None:
    app = App(redis_server.url, concurrent=3, penalty="3 refusals per minute: 1 minute")
    for _ in range(9):
        app.admit()
    admin.reset(app.settings, "POST /login", ip="192.0.2.9")
    app.gate.close()
    with Redis.from_url(redis_server.url) as client:
        keys = client.keys("*")
        assert {key[:10] for key in keys} >= {b"rl:1:{top}", b"rl:1:{tail"}
        assert all(client.pttl(key) > 0 for key in keys)


# The command line


def test_peek_prints_json_or_text(app: App, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(6):
        app.admit()
    code, out, err = run(capsys, "peek", file, "--request", "POST /login", "--ip", "192.0.2.7", "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)["buckets"]
    assert list(first) == ["rule", "limit", "key", "remaining", "retry_after", "reset_after"]
    assert (first["rule"], first["limit"], first["key"], first["remaining"]) == ("login", HOUR, "ip=192.0.2.7", 0)
    assert 3500 < first["retry_after"] <= 3600
    assert (second["remaining"], second["retry_after"]) == (15, 0.0)
    code, out, err = run(capsys, "peek", file, "--request", "POST /login", "--ip", "192.0.2.7")
    assert (code, err) == (0, ENDPOINTS)
    assert re.sub(" {2,}", "  ", timeless(out)).splitlines() == [
        f"login  {HOUR}  0 of 5 left, retry in TIME  ip=192.0.2.7",
        f"login-2  {DAY}  15 of 20 left  ip=192.0.2.7",
    ]
    first, second = out.splitlines()
    assert first.index(" ip=") == second.index(" ip=")


def test_reset_needs_confirmation(app: App, file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["reset", file, "--request", "POST /login", "--ip", "192.0.2.7"]
    app.admit()
    monkeypatch.setattr("sys.stdin", StringIO())
    assert run(capsys, *words) == (
        1,
        "",
        "ratelimit_mw: reset: cannot ask for confirmation without a terminal; to forget the buckets, add --yes\n",
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code, left in (("", 1, 4), ("n", 1, 4), ("yes", 0, 5)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert run(capsys, *words)[0] == code
        assert admin.peek(file, **LOGIN).buckets[0].remaining == left
    app.admit()
    code, out, err = run(capsys, *words, "--yes")
    assert (code, err) == (0, ENDPOINTS)
    assert out == "2 buckets forgotten; processes that remember a refusal follow within deny_cache, 1 s by default\n"
    app.admit()
    code, out, _ = run(capsys, *words, "--yes", "--json")
    assert [one["remaining"] for one in json.loads(out)["buckets"]] == [5, 20]


NONE = {"buckets": [], "forgotten": 0}
SEVEN, EIGHT = "ip=192.0.2.7", "ip=192.0.2.8"


def used(file: str, **chosen: Any) -> set[tuple[str, str, str]]:
    return {(one.key, one.rule, one.limit) for one in admin.keys(file, **chosen).keys}


@pytest.mark.parametrize("server", ["redis", "file"])
def test_keys_lists_and_reset_removes_the_buckets_of_a_key(
    server: str, redis_server: RedisServer, tmp_path: Path, capsys: Any
) -> None:
    url = redis_server.url if server == "redis" else f"sqlite://{tmp_path}/limits.db"
    app, file = App(url), write(tmp_path, url)
    for ip in ("192.0.2.7", "192.0.2.8"):
        for line in ("POST /login", "/"):
            app.admit(line, ip)
    app.gate.close()
    login = {(SEVEN, "login", HOUR), (SEVEN, "login", DAY)}
    default = {(SEVEN, "default", "100/60s using sliding_window_counter")}
    assert used(file, key=SEVEN) == login | default
    assert used(file, key=SEVEN, rule="login") == login
    assert {one[0] for one in used(file, rule="default")} == {SEVEN, EIGHT}
    assert used(file, key=SEVEN, limited=True) == set()
    assert used(file, key="ip=192.0.2.70") == set()
    listed = json.loads(run(capsys, "keys", file, "--key", SEVEN, "--rule", "login", "--json")[1])["keys"]
    assert {(one["key"], one["rule"], one["limit"]) for one in listed} == login

    code, out, err = run(capsys, "reset", file, "--key", SEVEN, "--rule", "login", "--yes")
    assert (code, err) == (0, "")
    assert out == "2 buckets forgotten; processes that remember a refusal follow within deny_cache, 1 s by default\n"
    assert used(file, key=SEVEN) == default
    after = admin.reset_key(file, SEVEN).buckets
    assert [(one.rule, one.remaining, one.retry_after) for one in after] == [("default", 100, 0.0)]
    assert used(file, key=SEVEN) == set()
    assert len(used(file, key=EIGHT)) == 3

    nothing = "the store has no bucket of this key\n"
    assert run(capsys, "reset", file, "--key", SEVEN) == (0, nothing, "")
    assert admin.reset_key(file, SEVEN).buckets == []
    assert json.loads(run(capsys, "reset", file, "--key", EIGHT, "--rule", "other", "--json")[1]) == NONE


@pytest.mark.parametrize("server", ["redis", "file"])
def test_reset_all_forgets_the_buckets_of_all_clients(
    server: str, redis_server: RedisServer, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = redis_server.url if server == "redis" else f"sqlite://{tmp_path}/limits.db"
    app, file = App(url), write(tmp_path, url)
    for number in range(60):
        app.admit("POST /login", f"192.0.2.{number}")
        app.admit("/", f"192.0.2.{number}")
    app.gate.close()
    monkeypatch.setattr("sys.stdin", StringIO())
    assert run(capsys, "reset", file, "--all")[:2] == (1, "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run(capsys, "reset", file, "--all") == (1, "all buckets, of all clients\n", "")
    assert len(used(file)) == 180
    later = "processes that remember a refusal follow within deny_cache, 1 s by default\n"
    assert run(capsys, "reset", file, "--all", "--rule", "login", "--yes") == (0, f"120 buckets forgotten; {later}", "")
    assert {one[1] for one in used(file)} == {"default"}
    code, _, err = run(capsys, "reset", file, "--all", "--rule", "logn", "--yes")
    assert (code, err.partition(";")[0]) == (0, "no rule logn in the settings and the store's keys")
    assert run(capsys, "reset", file, "--all", "--yes", "--json") == (0, '{"forgotten": 60}\n', "")
    assert (used(file), admin.reset_all(file)) == (set(), 0)


def test_reset_of_a_key_needs_confirmation(app: App, file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        app.admit()
    monkeypatch.setattr("sys.stdin", StringIO())
    assert run(capsys, "reset", file, "--key", SEVEN)[:2] == (1, "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    code, out, err = run(capsys, "reset", file, "--key", SEVEN)
    assert (code, err) == (1, "")
    assert sorted(re.sub(" {2,}", "  ", timeless(out)).splitlines()) == [
        f"login  {DAY}  15 of 20 left  {SEVEN}",
        f"login  {HOUR}  0 of 5 left, retry in TIME  {SEVEN}",
    ]
    assert len(used(file, key=SEVEN)) == 2


def test_reset_key_resets_more_buckets_than_one_call_reads(app: App, file: str) -> None:
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        for number in range(120):
            store.take([Charge(f"{{{SEVEN}}}:r{number}", FixedWindow(1, 60))])
    assert [one.remaining for one in admin.reset_key(file, SEVEN).buckets] == [1] * 120
    assert used(file) == set()


def test_reset_keeps_buckets_of_unknown_limits(redis_server: RedisServer, tmp_path: Path, capsys: Any) -> None:
    app = App(redis_server.url, rules=[], limits="1/hour using smooth", key="ip")
    app.admit("/")
    app.admit("/", "192.0.2.8")
    assert run(capsys, "keys", write(tmp_path, redis_server.url, rules=[]))[2].endswith(
        "; 2 belong to limits that the settings do not have\n"
    )
    file = write(tmp_path, redis_server.url, rules=[], limits="1/hour")  # a key of `smooth` does not contain the rate
    code, out, err = run(capsys, "reset", file, "--key", SEVEN, "--yes")
    assert (code, out) == (0, "the store has no bucket of this key\n")
    assert err == "buckets that stay, because the settings do not have their limits: 1\n"
    app.gate.close()


def test_keys_prints_json_or_text(app: App, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        for _ in range(6):
            app.admit(ip=f"192.0.2.{number}")
    code, out, err = run(capsys, "keys", file, "--json", "--limited")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert listed["seen"] == 1.0
    assert sorted(one["key"] for one in listed["keys"]) == [f"ip=192.0.2.{number}" for number in range(6)]
    assert {one["limit"] for one in listed["keys"]} == {HOUR}
    code, out, _ = run(capsys, "keys", file, "--json", "--most", "3")
    assert len(json.loads(out)["keys"]) == 3
    assert 0 < json.loads(out)["seen"] < 1
    code, out, err = run(capsys, "keys", file)
    assert (code, len(out.splitlines()), err) == (0, 13, "100.0 % of the store's keys were read\n")
    assert admin.keys(file, most=4).seen < 1.0
    assert len(admin.keys(file, most=4).keys) == 4


def test_keys_and_top_list_nothing_for_an_empty_store(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "keys", file, "--json")[1]) == {"keys": [], "seen": 1.0}
    assert json.loads(run(capsys, "top", file, "--json")[1]) == {"clients": []}
    assert run(capsys, "keys", file) == (0, "", "100.0 % of the store's keys were read\n")
    assert run(capsys, "top", file) == (0, "", "no client was refused\n")


def test_top_counts_refusals_and_tail_lists_them(app: App, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(9):
        app.admit()
    for _ in range(7):
        app.admit(ip="192.0.2.8")
    app.gate.close()
    code, out, err = run(capsys, "top", file, "--since", "10m", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "clients": [
            {"key": "ip=192.0.2.7", "rule": "login", "refused": 4},
            {"key": "ip=192.0.2.8", "rule": "login", "refused": 2},
        ]
    }
    assert run(capsys, "top", file, "--most", "1")[1] == "refused  rule   key\n4        login  ip=192.0.2.7\n"
    code, out, err = run(capsys, "tail", file, "--most", "6", "--json")
    assert (code, err) == (0, "")
    refusals = [json.loads(line) for line in out.splitlines()]
    assert [one["key"] for one in refusals] == ["ip=192.0.2.7"] * 4 + ["ip=192.0.2.8"] * 2
    assert list(refusals[0]) == ["at", "rule", "limit", "key", "retry_after"]
    assert abs(refusals[0]["at"] - time.time()) < 300
    code, out, _ = run(capsys, "tail", file, "--rule", "login", "--most", "1")
    assert out.startswith(f"{'time':20}  rule  limit  retry  key\n")
    assert timeless(out).endswith(f"Z  login  {HOUR}  retry in TIME  ip=192.0.2.7\n")


def test_top_and_tail_end_if_no_refusals_are_kept(
    app: App, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.admin.commands.time", SimpleNamespace(sleep=interrupted))
    file = write(tmp_path, app.settings.store, remember_refused=0)
    hint = (
        "the settings do not have remember_refused, so no refusals are kept; `keys --limited` lists the buckets that "
        "refuse a request now\n"
    )
    assert run(capsys, "top", file) == (0, "", hint)
    for more in ((), ("--json",), ("--rule", "login")):
        assert run(capsys, "tail", file, *more) == (1, "", hint)
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        store.add_refused({}, [admin_refusal("{ip=192.0.2.7}:login")])  # another process has other settings
    assert run(capsys, "tail", file, "--most", "1")[::2] == (0, "")


def test_tail_prints_a_page_in_order_of_time(app: App, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each process reports the refusals of its last second at once, so that reports overlap in time."""
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        for times in ([100.0, 102.0], [101.0, 103.0]):
            store.add_refused({}, [replace(admin_refusal("{ip=192.0.2.7}:login"), at=at) for at in times])
    out = run(capsys, "tail", file, "--most", "4", "--json")[1]
    assert [json.loads(line)["at"] for line in out.splitlines()] == [100.0, 101.0, 102.0, 103.0]


def test_tail_follows_the_refusals_of_one_rule(app: App, file: str) -> None:
    words = [sys.executable, "-m", "ratelimit_mw", "tail", file, "--rule", "login", "--most", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as tail:
        assert tail.stdout is not None
        with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
            for rule in ("default", "login"):
                for _ in range(2):
                    store.add_refused({}, [admin_refusal(f"{{ip=192.0.2.7}}:{rule}")])
        keys = [line.split()[2] for line in tail.stdout]
        assert tail.wait(60) == 0
    assert keys == ["limit", "login", "login"]  # the first is of the heading


def test_tail_lists_the_rules_if_the_rule_is_unknown(
    app: App, file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        store.add_refused({}, [admin_refusal("{ip=192.0.2.7}:@\x1b[2Jview()")])
    monkeypatch.setattr("ratelimit_mw.admin.commands.time", SimpleNamespace(sleep=interrupted))
    code, out, err = run(capsys, "tail", file, "--rule", "lgin")
    assert (code, out) == (130, "")
    assert err == (
        "no rule lgin in the settings and the latest refusals; they have "
        "@\\x1b[2Jview(), default, login, login/preflight, preflight\n"
    )
    assert run(capsys, "tail", file, "--rule", "login") == (130, "", "")


def test_keys_and_reset_list_the_rules_if_the_rule_is_unknown(app: App, file: str, capsys: Any) -> None:
    app.admit()
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        store.take([Charge(f"{{{SEVEN}}}:@view()", FixedWindow(1, 60))])
    names = "they have @view(), default, login, login/preflight, preflight\n"
    code, out, err = run(capsys, "reset", file, "--key", SEVEN, "--rule", "logn", "--yes")
    assert (code, out) == (0, "the store has no bucket of this key and rule\n")
    assert err == f"no rule logn in the settings and the buckets of this key; {names}"
    code, out, err = run(capsys, "keys", file, "--rule", "logn")
    assert (code, out) == (0, "")
    assert err == f"100.0 % of the store's keys were read\nno rule logn in the settings and the store's keys; {names}"
    for rule in ("preflight", "view"):
        assert "no rule" not in run(capsys, "keys", file, "--rule", rule)[2]


def test_reset_reports_a_key_missing_for_several_limits_once(
    redis_server: RedisServer, tmp_path: Path, capsys: Any
) -> None:
    rule = {"path": "/login", "name": "login", "limits": "5/hour; 20/day", "key": "ip"}
    rules = [{**rule, "penalty": "3 refusals per minute: 1 hour"}]
    file = write(tmp_path, redis_server.url, rules=rules, limits=[], key="user")
    code, out, err = run(capsys, "reset", file, "--request", "POST /login", "--yes")
    assert (code, out) == (1, "")
    assert err == (
        "ratelimit_mw: the request has no value for the key 'ip' of login, login-2, login-penalty; describe it with "
        "--ip, --user, --header or --host. If the app reads it from elsewhere, such as a form, reset the keys that "
        "`peek` and `keys` show, with reset --key. --ip '' means a request without an address, whose bucket all such "
        "requests share\n"
    )


@pytest.mark.parametrize(
    ("rule", "spellings"),
    [
        ("login", {"login"}),
        ("c++", {"c++"}),
        ("@login", {"@login", "login"}),
        ("@login+", {"@login+", "@login", "login"}),
        ("@shop.search()", {"@shop.search()", "shop.search()", "@shop.search", "shop.search"}),
    ],
)
def test_only_endpoint_rules_have_several_spellings(rule: str, spellings: set[str]) -> None:
    assert rule_spellings(rule) == spellings


def interrupted(_: float) -> None:
    raise KeyboardInterrupt


# Data that an attacker can put into a store

HOSTILE = "ip=\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r\n\x7f{}'\""


def test_no_control_character_reaches_a_terminal(
    app: App, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "r\x1b[8m"
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        store.take([Charge(f"{{{HOSTILE}}}:{rule}", FixedWindow(1, 60))])
        store.take([Charge(f"{{{HOSTILE * 200}}}:{rule}", FixedWindow(1, 60))])
        store.add_refused({f"{{{HOSTILE}}}:{rule}": 3}, [admin_refusal(f"{{{HOSTILE}}}:{rule}", limit="l\x1b[8m")])
    for words in (["keys", file], ["top", file], ["tail", file, "--most", "1"]):
        for as_json in ([], ["--json"]):
            code, out, err = run(capsys, *words, *as_json)
            assert code == 0
            assert [char for char in out + err if not char.isprintable() and char != "\n"] == []
            assert max(map(len, out.split("\n"))) < 500 or as_json
            assert "owned" in out
    (client,) = json.loads(run(capsys, "top", file, "--json")[1])["clients"]
    assert client == {"key": HOSTILE, "rule": rule, "refused": 3}
    keys = {one["key"] for one in json.loads(run(capsys, "keys", file, "--json")[1])["keys"]}
    assert keys == {HOSTILE, HOSTILE * 200}


def test_error_messages_escape_control_characters(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "peek", file, "--request", "POST /\x1b[2J \x1b x", "--ip", "192.0.2.7")
    assert (code, out) == (1, "")
    assert "\x1b" not in err


def test_output_escapes_characters_that_the_terminal_cannot_show(app: App, file: str, tmp_path: Path) -> None:
    with closing(RedisStore(app.settings.store, timeout=PATIENT)) as store:
        store.take([Charge("{user=Zoë}:r", FixedWindow(1, 60))])
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "ratelimit_mw", "keys", file]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    _, _, listed = timeless(done.stdout).partition("\n")
    assert listed == "r     1/60s using fixed_window  0 left, retry in TIME  user=Zo\\xeb\n"


def test_keys_skips_keys_of_other_programs(app: App, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    app.admit()
    with Redis.from_url(app.settings.store) as client:
        for key in (
            "rl:1:{a}",
            "rl:1:{a}:",
            "rl:1:{a}:r",
            "rl:1:{a}:r:",
            "rl:1:{a}:r:5/60s",
            "rl:1:{a}:r:5/60s_using_",
            "rl:1:{a}:r:" + "9" * 400 + "/60s_using_gcra",
            "rl:1:{a}:r:05/60s_using_gcra",
            "rl:1:{a}:r:5/60s_using_gcra;1/2s_using_gcra",
            "rl:1:{a}:r:bad name:5/60s_using_gcra",
            "rl:1:{a}:r:9/99999999999999999s_ban_1s_using_ban",
            "rl:1:{}:r:5/60s_using_\udc80".encode("utf-8", "surrogatepass"),
            b"rl:1:{\xff}:r:5/60s_using_gcra",
        ):
            client.set(key, "x")
        client.lpush("rl:1:{b}:r:5/60s_using_gcra", "of another type")  # the bucket counts as unused
    keys = {(one.key, one.limit): one.remaining for one in admin.keys(file).keys}
    assert keys == {("ip=192.0.2.7", HOUR): 4, ("ip=192.0.2.7", DAY): 19, ("b", "5/60s using gcra"): 5}
    code, _, err = run(capsys, "keys", file)
    assert code == 0
    assert "belong to limits that the settings do not have" in err


def test_keys_reads_the_limits_from_the_keys_in_the_store(redis_server: RedisServer) -> None:
    texts = [
        "7/90000100us using fixed_window",
        "100/60000500us burst 20 using token_bucket",
        "100/60s burst 20 using gcra",
        "100/60s burst 20 using leaky_bucket",
        "100/60s using sliding_window_counter",
        "100/60s buckets 10 strict using sliding_window_counter",
        "9/60s using sliding_window_log",
    ]
    limits: list[Any] = [{"limit": text, "name": f"n.{number}"} for number, text in enumerate(texts)]
    app = App(redis_server.url, rules=[], limits=limits, penalty="3 refusals per minute: 90000 ms", concurrent=2)
    for _ in range(11):
        app.admit("/")
    other = App.settings_of(redis_server.url, rules=[], limits="1/second")  # only the keys contain the limits
    assert {one.limit for one in admin.keys(other).keys} >= {*texts, "3/60s ban 90s using ban"}


# Stores that cannot be queried


COMMANDS = [
    ["peek", "--request", "/", "--ip", "192.0.2.7"],
    ["reset", "--request", "/", "--ip", "192.0.2.7", "--yes"],
    ["keys"],
    ["top"],
    ["tail"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exit_with_2_if_the_store_is_unreachable(tmp_path: Path, capsys: Any, command: list[str]) -> None:
    file = write(tmp_path, f"redis://127.0.0.1:{free_port()}")
    code, out, err = run(capsys, command[0], file, *command[1:], "--json")
    assert (code, out) == (2, "")
    assert err.startswith("ratelimit_mw: ")
    assert "Connection refused" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exit_with_2_for_a_memory_store(tmp_path: Path, capsys: Any, command: list[str]) -> None:
    file = write(tmp_path, "memory://")
    code, out, err = run(capsys, command[0], file, *command[1:])
    assert (code, out) == (2, "")
    assert "cannot be read from another process" in err
    assert "a service that `serve` runs answers POST /v1/peek and /v1/reset itself" in err
    with pytest.raises(StoreError, match="cannot be read from another process"):
        admin.peek(file, **LOGIN)


def test_peek_exits_with_2_if_the_server_does_not_reply(redis_server: RedisServer, tmp_path: Path, capsys: Any) -> None:
    with RedisServer(redis_server.binary) as server:
        file = write(tmp_path, server.url, store_timeout=0.05)
        server.pause()
        assert run(capsys, "peek", file, "--request", "/", "--ip", "192.0.2.7")[0] == 2


def test_peek_and_reset_use_a_memory_store_of_this_process() -> None:
    store = MemoryStore()
    settings = Settings(limits="5/hour using fixed_window", store=store)
    Gate(settings).admit(DescribedRequest("/", "192.0.2.7").request())
    assert [one.remaining for one in admin.peek(settings, "/", ip="192.0.2.7").buckets] == [4]
    assert [one.remaining for one in admin.reset(settings, "/", ip="192.0.2.7").buckets] == [5]
    for function in (admin.keys, admin.top):
        with pytest.raises(ConfigError, match="MemoryStore can neither list its keys nor keep refusals"):
            function(settings)


@pytest.mark.parametrize(
    "settings",
    [
        *({"limits": f"5/hour using {name}"} for name in ALGORITHMS),
        {"limits": "5/hour burst 9 using gcra", "shadow": True},
        {"limits": [], "concurrent": 3},
        {"limits": "1/hour", "penalty": "3 refusals per hour: 1 hour"},
    ],
    ids=str,
)
def test_reset_returns_how_many_buckets_existed(settings: dict[str, Any]) -> None:
    """A bucket exists as soon as one unit is counted, and until it is forgotten."""
    clock = Clock()
    own = Settings(**settings, store=MemoryStore(clock=clock))
    gate = Gate(own)
    admit = partial(gate.admit, DescribedRequest("/", "192.0.2.7").request())
    words: Any = {"request": "/", "ip": "192.0.2.7"}
    total = len(admin.peek(own, **words).buckets)
    assert [one.exists for one in admin.peek(own, **words).buckets] == [False] * total
    assert admin.reset(own, **words).forgotten == 0
    admit()
    if "penalty" in settings:
        assert admin.reset(own, **words).forgotten == 1  # nothing was refused yet
        admit()
    admit()
    clock.advance(1)
    assert admin.reset(own, **{**words, "ip": "192.0.2.8"}).forgotten == 0
    assert admin.reset(own, **words).forgotten == total
    assert admin.reset(own, **words).forgotten == 0


ABSENT = "no such bucket exists: nothing is counted for {}, which this request has for the key {!r} of {}{}"
OF_USER = (
    "; `user` is the first of identity, pk, id, username, display_name that the app's user has, in Django the primary "
    "key"
)


def test_peek_and_reset_say_that_no_such_bucket_exists(
    app: App, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, app.settings.store, key="user | ip")
    monkeypatch.setattr("sys.stdin", StringIO())  # nothing is forgotten, so nothing is asked
    app.admit()
    words = ["--request", "/", "--user", "ann", "--ip", "192.0.2.7"]
    absent = ABSENT.format("user=ann", "user | ip", "default", OF_USER)
    assert run(capsys, "peek", file, *words)[::2] == (0, f"{absent}\n{ENDPOINTS}")
    code, out, err = run(capsys, "reset", file, *words)
    assert (code, out.split(";")[0], err) == (0, "0 buckets forgotten", f"{absent}\n{ENDPOINTS}")
    assert json.loads(run(capsys, "reset", file, *words, "--json")[1])["forgotten"] == 0
    login = ["--request", "POST /login", "--ip", "192.0.2.8"]
    absent = ABSENT.format("ip=192.0.2.8", "ip", "login, login-2", "")
    assert run(capsys, "peek", file, *login)[2] == f"{absent}\n{ENDPOINTS}"
    assert run(capsys, "peek", file, *login, "--json")[2] == ""


def test_peek_with_a_store_for_asyncio_is_an_error(redis_server: RedisServer) -> None:
    settings = Settings(limits="5/hour", store=AsyncRedisStore(redis_server.url))
    with pytest.raises(ConfigError, match="AsyncRedisStore, which only asyncio can use; expected the URL"):
        admin.peek(settings, "/", ip="192.0.2.7")


# Options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"request": "login"}, "--request: got 'login'"),
        ({"request": 5}, "--request: got 5"),
        (
            {"request": "/caf\udce9"},
            r"^--request: got '/caf\\udce9', expected a path in UTF-8, or with escapes such as %FF$",
        ),
        ({"request": "/", "ip": "nobody"}, "--ip: got 'nobody'"),
        ({"request": "/", "ip": 5}, "--ip: got 5, expected an address such as"),
        ({"request": "/", "headers": ["no colon"]}, "--header: got 'no colon'"),
        ({"request": "/", "headers": [5]}, "--header: got 5, expected a name and a value such as 'X-Api-Key: abc'"),
        ({"request": "/", "headers": "X: y"}, "--header: got 'X: y', expected a list"),
        ({"request": "/", "headers": {"a\nb": "c"}}, "expected text without control characters"),
        ({"request": "/", "host": "a\tb"}, "--host: got"),
        ({"request": "/", "host": 5}, "--host: got 5, expected text without control characters"),
        ({"request": "/"}, "the request has no value for the key 'user | ip' of default"),
        ({"request": "/"}, "such as a form, reset the keys that `peek` and `keys` show, with reset --key"),
    ],
)
def test_an_invalid_request_description_is_an_error(file: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        admin.peek(file, **words)


def test_requests_without_an_address_share_a_bucket(app: App) -> None:
    app.admit("/", ip="")
    (shared,) = admin.peek(app.settings, "/", ip="").buckets
    assert (shared.key, shared.remaining) == ("missing=user%20%7C%20ip", 99)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exempt": ["/"]}, "nothing limits this request"),
        ({"safelist": ["192.0.2.0/24"]}, "nothing limits this request"),
        ({"enabled": False}, "nothing limits this request"),
        ({"blocklist": ["192.0.2.0/24"]}, "the client is on the blocklist"),
        ({"limits": []}, "no limit applies to this request"),
    ],
)
def test_peek_and_reset_explain_why_a_request_has_no_bucket(
    redis_server: RedisServer, tmp_path: Path, capsys: Any, options: dict[str, Any], reason: str
) -> None:
    file = write(tmp_path, redis_server.url, **options)
    for command in (["peek"], ["reset", "--yes"]):
        code, out, _ = run(capsys, command[0], file, *command[1:], "--request", "/", "--ip", "192.0.2.7")
        assert code == 0
        assert out.startswith(reason)
    code, out, _ = run(capsys, "peek", file, "--request", "/", "--ip", "192.0.2.7", "--json")
    assert json.loads(out) == {"buckets": []}


@pytest.mark.parametrize(
    "words",
    [
        ["keys", "--most", "0"],
        ["keys", "--most", "x"],
        ["top", "--since", "2h"],
        ["top", "--since", "0s"],
        ["peek"],
        ["reset", "--yes"],
        ["reset", "--yes", "--key", "a", "--request", "/"],
        ["reset", "--yes", "--all", "--request", "/"],
        ["peek", "--key", "a"],
    ],
)
def test_invalid_arguments_exit_with_2(file: str, capsys: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_of:
        main([words[0], file, *words[1:]])
    assert exit_of.value.code == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--key", SEVEN, "--ip", "192.0.2.7"], "--key: names the client, expected no --ip"),
        (["--all", "--user", "bob"], "--all: names all clients, expected no --ip"),
        (["--request", "/", "--ip", "192.0.2.7", "--rule", "login"], "--rule: present without --key or --all"),
    ],
)
def test_options_without_effect_are_an_error(app: App, file: str, capsys: Any, words: list[str], problem: str) -> None:
    app.admit()
    code, out, err = run(capsys, "reset", file, "--yes", *words)
    assert (code, out) == (1, "")
    assert err.startswith(f"ratelimit_mw: {problem}")
    assert len(used(file)) == 2


@pytest.mark.parametrize(("function", "options"), [(admin.keys, {"most": 0}), (admin.top, {"most": True})])
def test_an_invalid_most_is_an_error(file: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^most: got "):
        function(file, **options)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.001, "1 s"),
        (59.2, "1 min"),
        (60, "1 min"),
        (61, "2 min"),
        (3599, "60 min"),
        (3600, "1 h"),
        (86400, "1 d"),
        (1e9, "11575 d"),
    ],
)
def test_durations_are_rounded_up_to_a_single_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert retry(math.inf) == "never passes"


@pytest.mark.parametrize("since", [0, -1, 3601, math.inf, "10m", True])
def test_an_invalid_since_is_an_error(file: str, since: Any) -> None:
    with pytest.raises(ConfigError, match=r"^since: got "):
        admin.top(file, since=since)


def test_pace_leaves_the_server_four_fifths_of_its_time() -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def take(seconds: float, own: float = 0.0) -> None:
        now[0] += seconds + own
        busy[0] += own

    busy = [0.0]
    pace = Pace(lambda: now[0], sleep, lambda: busy[0])
    pace(lambda: take(2.0, own=0.5))
    pace(lambda: take(1.0))
    now[0] += 3.0  # other work
    pace(lambda: take(1.0))
    pace(lambda: take(0.0))
    pace(lambda: take(0.0))
    assert slept == [8.0, 1.0, 4.0]
