"""Tests the inspection of the store before the first request, by `check --store` and the setting `strict`."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from checking import Check, check_in
from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.starlette import limit
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.redis.inspection import (
    CLIENT_COMMANDS,
    CLUSTER_COMMANDS,
    METRICS_COMMANDS,
    REMEMBER_REFUSED_COMMANDS,
    SCRIPT_COMMANDS,
    SORTED_SET_COMMANDS,
    inspect,
)
from ratelimit_mw.stores.url import redacted_url
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware
from redis_cluster import RedisCluster
from redis_sentinels import SERVICE, SentinelServer
from redis_servers import RedisServer
from stores.test_least_privilege import COMMANDS, ON_A_CLUSTER, grant, url
from web.frameworks import test_django_checks as checks

pytestmark = [pytest.mark.promise(9), pytest.mark.one_redis, pytest.mark.usefixtures("unthrottled_log")]

PASSWORD = "a-long-password"  # the same as in the documented ACL rules
WITHOUT = [command for command in COMMANDS if not command.startswith("z")]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    return check_in(tmp_path, monkeypatch, capsys)


def settings(store: str, **more: str) -> str:
    words = {"limits": '"5/minute"', "store": f'"{store}"', **more}
    return "\n".join(f"{word} = {value}" for word, value in words.items())


def of_store(printed: str) -> list[str]:
    """Return the lines about the store, without numbers that vary."""
    lines = printed.partition("\n\n")[2].rstrip("\n").split("\n")
    return [re.sub(r"(latency +|clock +).*", r"\1N", line).strip() for line in lines]


def test_check_describes_a_working_store(check: Check, server: RedisServer) -> None:
    name, _, version = server.version().partition("-")
    assert of_store(check(settings(server.url), "--store")) == [
        f"Store {server.url}:",
        f"127.0.0.1:{server.port}",
        f"server   {name} {version}, one server, mode standalone, role master",
        "rights   all that the limits need",
        "latency  N",
        "clock    N",
        "memory   no maxmemory, policy noeviction",
        "works: a unit was taken and its bucket reset",
    ]
    assert server.ask("DBSIZE") == ":0"  # the inspection removed its keys before they expired


def test_check_describes_a_memory_store(check: Check) -> None:
    assert of_store(check(settings("memory://"), "--store")) == [
        "Store memory://:",
        "in the memory of each process: there is nothing to connect to",
    ]


def test_check_does_not_connect_without_the_option(check: Check) -> None:
    assert "Store" not in check(settings("redis://127.0.0.1:1/0", strict="true"))


def test_check_reports_an_unreachable_store(check: Check) -> None:
    (line,) = [
        line
        for line in of_store(check(settings(f"redis://:{PASSWORD}@127.0.0.1:1/0"), "--store", code=2))
        if "no" in line
    ]
    assert line == "no answer: ConnectionError: Error 111 connecting to 127.0.0.1:1. Connection refused."


@pytest.mark.parametrize("more", [{}, {"strict": "true"}])
def test_check_reports_a_rejected_password(check: Check, server: RedisServer, more: dict[str, str]) -> None:
    grant(server, COMMANDS)
    place = f"127.0.0.1:{server.port}"
    printed = check(settings(f"redis://ratelimit:{PASSWORD}x@{place}", **more), "--store", code=1)
    assert of_store(printed)[:2] == [f"Store redis://{place}:", place]
    assert of_store(printed)[2].startswith(
        f"rejects this app: {place}: wrong user or password; write the right ones into"
    )
    assert PASSWORD not in printed


def test_required_rights_match_the_documented_ones() -> None:
    assert sorted([*SCRIPT_COMMANDS, *SORTED_SET_COMMANDS, *CLIENT_COMMANDS]) == COMMANDS
    assert sorted(CLUSTER_COMMANDS) == sorted(ON_A_CLUSTER)


def test_check_accepts_the_documented_rights(check: Check, server: RedisServer) -> None:
    grant(server, COMMANDS)
    text = settings(url(server.url), limits='"5/minute using sliding_window_log"', concurrent="3")
    lines = of_store(check(text, "--store"))
    assert lines[3:4] + lines[6:] == [
        "rights   all that the limits need",
        "memory   unknown: the user may not run INFO",
        "works: a unit was taken and its bucket reset",
    ]
    grant(server, WITHOUT)
    assert "works: a unit was taken and its bucket reset" in check(settings(url(server.url)), "--store")


@pytest.mark.parametrize("missing", [command for command in COMMANDS if command != "eval"])
def test_a_missing_right_is_named(missing: str, server: RedisServer) -> None:
    grant(server, [command for command in COMMANDS if command != missing])
    found = inspect(url(server.url), "rl:", ["gcra", "sliding_window_log"], 0.05)
    assert found.nodes[0].missing == [missing]
    assert found.mistakes == [
        f"127.0.0.1:{server.port}: the user lacks rights; grant them: ACL SETUSER USER +{missing}"
    ]


@pytest.mark.parametrize("missing", REMEMBER_REFUSED_COMMANDS)
def test_a_missing_right_of_remember_refused_is_named(missing: str, server: RedisServer) -> None:
    grant(server, sorted({*WITHOUT, *REMEMBER_REFUSED_COMMANDS} - {missing}))
    found = inspect(url(server.url), "rl:", ["gcra"], 0.05, remembers_refused=True)
    assert found.nodes[0].missing == [missing]


def test_check_requires_the_rights_of_remember_refused(check: Check, server: RedisServer) -> None:
    grant(server, WITHOUT)
    text = settings(url(server.url), remember_refused="100")
    assert "rights   lacks xadd, zincrby, zremrangebyrank" in of_store(check(text, "--store", code=1))
    grant(server, [*WITHOUT, *REMEMBER_REFUSED_COMMANDS])
    assert "rights   all that the limits need" in of_store(check(text, "--store"))
    assert server.ask("DBSIZE") == ":0"


def test_rights_of_remember_refused_match_the_documented_ones() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/who-is-limited.md").read_text("utf-8")
    granted = page.partition("ACL SETUSER ratelimit +xadd")[2].partition("\n")[0].split()
    assert {"xadd", *(name.removeprefix("+") for name in granted)} == {*REMEMBER_REFUSED_COMMANDS} - {*SCRIPT_COMMANDS}


@pytest.mark.parametrize("missing", METRICS_COMMANDS)
def test_a_missing_right_of_metrics_is_named(missing: str, server: RedisServer) -> None:
    grant(server, sorted({*WITHOUT, *METRICS_COMMANDS} - {missing}))
    assert inspect(url(server.url), "rl:", ["gcra"], 0.05, counts=True).nodes[0].missing == [missing]


def test_rights_of_metrics_match_the_documented_ones() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/watch-it-live.md").read_text("utf-8")
    granted = page.partition("ACL SETUSER ratelimit +hdel")[2].partition("\n")[0].split()
    assert {"hdel", *(name.removeprefix("+") for name in granted)} == {*METRICS_COMMANDS} - {*SCRIPT_COMMANDS}


def test_check_names_all_missing_rights_together(check: Check, server: RedisServer) -> None:
    grant(server, ["eval", "get", "time"])
    rights = "rights   lacks evalsha, hmget, pexpire, script|load, set, unlink"
    assert rights in of_store(check(settings(url(server.url)), "--store", code=1))
    sets = "rights   lacks evalsha, hmget, pexpire, script|load, set, unlink, zadd, zcount"
    assert any(
        line.startswith(sets) for line in of_store(check(settings(url(server.url), concurrent="2"), "--store", code=1))
    )
    grant(server, [])
    assert "+eval +evalsha +hmget +script|load +unlink" in check(settings(url(server.url)), "--store", code=1)


def test_check_reports_a_key_prefix_without_rights(check: Check, server: RedisServer) -> None:
    server.ask(f"ACL SETUSER ratelimit on >{PASSWORD} ~other:* +@all")
    printed = check(settings(url(server.url)), "--store", code=1)
    assert "the user may not use keys with the prefix of this store; grant them" in printed


def test_check_warns_about_an_eviction_policy(check: Check, server: RedisServer) -> None:
    server.ask("CONFIG SET maxmemory 100mb")
    assert "evicts" not in check(settings(server.url), "--store")
    server.ask("CONFIG SET maxmemory-policy volatile-ttl")
    lines = of_store(check(settings(server.url), "--store"))
    assert "memory   maxmemory 104857600, policy volatile-ttl" in lines
    assert any(
        "warning: " in line and "maxmemory-policy volatile-ttl evicts keys of this store" in line for line in lines
    )


def test_inspection_warns_about_slow_servers_and_clock_differences(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inspect(server.url, "rl:", ["gcra"], 1e-9)
    assert [text.partition(", longer")[2] for text in found.warnings] == [
        " than store_timeout: on_store_error decides requests; raise store_timeout"
    ]
    monkeypatch.setattr("ratelimit_mw.stores.redis.inspection.time.time", lambda: 1_000_000_000.0)
    (warning,) = inspect(server.url, "rl:", ["gcra"], 60.0).warnings
    assert "its clock differs by +" in warning


def test_check_describes_each_node_of_a_cluster(check: Check, redis_cluster: RedisCluster) -> None:
    lines = of_store(check(settings(redis_cluster.url, key_secret='"a secret of our own"'), "--store"))
    assert sorted(line for line in lines if line.startswith("127")) == sorted(
        f"127.0.0.1:{node.port}" for node in redis_cluster.nodes
    )
    assert lines.count("rights   all that the limits need") == 3
    assert sum("node of a cluster, mode cluster, role master" in line for line in lines) == 3
    printed = check(settings(redis_cluster.redis_url), "--store", code=1)
    assert "it is a node of a cluster; begin the store's URL with redis+cluster://" in printed


def test_inspection_names_a_cluster_node_with_missing_rights(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        grant(node, COMMANDS + ON_A_CLUSTER)
    last = redis_cluster.nodes[-1]
    grant(last, COMMANDS)
    try:
        found = inspect(url(redis_cluster.url), "rl:", ["gcra"], 0.05)
    finally:
        for node in redis_cluster.nodes:
            node.ask("ACL DELUSER ratelimit")
    assert found.mistakes == [
        f"127.0.0.1:{last.port}: the user lacks rights; grant them: ACL SETUSER USER +asking +cluster|slots"
    ]


def test_check_describes_the_master_behind_sentinels(check: Check, server: RedisServer) -> None:
    with SentinelServer(server.binary) as sentinel:
        sentinel.ask(f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {server.port} 1")
        place = f"127.0.0.1:{sentinel.port}"
        lines = of_store(check(settings(f"redis+sentinel://{place}/{SERVICE}"), "--store"))
        assert lines[:2] == [f"Store redis+sentinel://{place}/{SERVICE}:", f"127.0.0.1:{server.port}"]
        assert "master by Sentinel, mode standalone, role master" in lines[2]
        one_is_away = check(settings(f"redis+sentinel://127.0.0.1:1,{place}/{SERVICE}"), "--store")
        assert "warning: Sentinel 127.0.0.1:1: ConnectionError" in one_is_away
        unknown = check(settings(f"redis+sentinel://{place}/limit"), "--store", code=1)
        assert f"rejects this app: Sentinel {place}: no service 'limit', did you mean 'limits'?" in unknown
        as_server = check(settings(f"redis://{place}"), "--store", code=1)
        assert f"rejects this app: {place}: it is a Sentinel; begin the store's URL with redis+sentinel://" in as_server
    check(settings(f"redis+sentinel://{place}/{SERVICE}"), "--store", code=2)


def test_check_reports_a_replica(check: Check, server: RedisServer) -> None:
    server.ask("REPLICAOF 127.0.0.1 1")
    assert "it is a replica, which may not write; name the master" in check(settings(server.url), "--store", code=1)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("redis://user:p%2Fw@h:1/3?socket_keepalive=1", "redis://h:1/3"),
        ("redis+sentinel://:p@h:1,i:2/s/1?sentinel_password=a@b/c", "redis+sentinel://h:1,i:2/s/1"),
        ("redis://:p@[::1]:1", "redis://[::1]:1"),
        ("unix://user:p@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis+cluster://h?password=p", "redis+cluster://h"),
        ("memory://", "memory://"),
    ],
)
def test_urls_are_shown_without_secrets(written: str, shown: str) -> None:
    assert redacted_url(written) == shown


REJECTED = r"^store: cannot connect: 127\.0\.0\.1:\d+: wrong user or password; write the right ones"


async def _nothing(*_: Any) -> None:
    """An app that does nothing."""


@pytest.mark.parametrize(
    ("kind", "opened"),
    [(WsgiMiddleware, None), (WsgiMiddleware, RedisStore), (AsgiMiddleware, None), (AsgiMiddleware, AsyncRedisStore)],
)
def test_strict_prevents_the_start_if_the_store_rejects_the_user(kind: Any, opened: Any, server: RedisServer) -> None:
    grant(server, COMMANDS)
    place = url(server.url).replace(PASSWORD, "x")
    store = place if opened is None else opened(place)
    kind(_nothing, limits="5/minute", store=store)
    with pytest.raises(ConfigError, match=REJECTED):
        kind(_nothing, limits="5/minute", store=store, strict=True)
    kind(_nothing, limits="5/minute", store=url(server.url), strict=True)
    grant(server, WITHOUT)
    kind(_nothing, limits="5/minute", store=url(server.url), strict=True)
    with pytest.raises(ConfigError, match=r"^store: the user lacks a right"):
        kind(_nothing, limits="5/minute using sliding_window_log", store=url(server.url), strict=True)


@pytest.mark.parametrize("kind", [WsgiMiddleware, AsgiMiddleware])
def test_strict_allows_a_start_while_the_store_is_unreachable(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    kind(_nothing, limits="5/minute", store="redis://127.0.0.1:1/0", strict=True)
    assert "store: no answer at start (cannot connect: ConnectionError: Error 111" in caplog.text


def test_strict_fails_the_lifespan_startup_under_asgi(server: RedisServer) -> None:
    """Starlette creates its middleware when the lifespan begins, in the event loop."""
    grant(server, COMMANDS)
    sent: list[Any] = []

    async def main() -> None:
        app = AsgiMiddleware(_nothing, limits="1/minute", store=url(server.url).replace(PASSWORD, "x"), strict=True)

        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "lifespan"}, receive, send)

    asyncio.run(main())
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert re.match(r"ratelimit_mw: store: cannot connect: 127\S+ wrong user or password", sent[0]["message"])


def test_strict_prevents_the_start_of_flask(server: RedisServer) -> None:
    wants = url(server.url).replace(PASSWORD, "x")
    grant(server, COMMANDS)
    with pytest.raises(ConfigError, match=r"store: cannot connect: .* wrong user or password"):
        RateLimiter(Flask("shop"), limits="5/minute", store=wants, strict=True)


@pytest.mark.one_redis
def test_strict_prevents_the_start_of_django_and_check_gives_the_cause(server: RedisServer, tmp_path: Path) -> None:
    grant(server, COMMANDS)
    for password, rejects in ((PASSWORD, False), ("another", True)):
        store = url(server.url).replace(PASSWORD, password)
        more = f'RATELIMIT_MW = {{"limits": "9/minute", "key": "ip", "store": "{store}", "strict": True}}'
        folder = checks.project(tmp_path, more, checks.OURS)
        done = checks.manage(folder, "check")
        found = checks.told(done)
        assert [kind for kind, _ in found] == ["E001"] * rejects
        assert all(re.match(r"RATELIMIT_MW\.store: cannot .* wrong user or password; write", text) for _, text in found)
        assert done.returncode == rejects
        assert password not in done.stdout + done.stderr
        served = checks.manage(folder, "shell", "--command", "import served")
        assert ("wrong user or password" in served.stderr) is rejects


def test_strict_checks_the_store_of_an_endpoint(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    grant(server, COMMANDS)
    monkeypatch.setenv("RATELIMIT_MW_STRICT", "true")
    with pytest.raises(ConfigError, match=r"store: cannot connect: .* wrong user or password"):
        limit("5/minute", store=url(server.url).replace(PASSWORD, "x"))


@pytest.mark.parametrize("options", ["", "?protocol=2", "?protocol=3"])
def test_check_reports_a_missing_password(check: Check, server: RedisServer, options: str) -> None:
    server.ask("CONFIG SET requirepass x")
    (line,) = [
        line
        for line in of_store(check(settings(f"redis://127.0.0.1:{server.port}/0{options}"), "--store", code=1))
        if line.startswith(("rejects", "no answer"))
    ]
    assert line.startswith(
        f"rejects this app: 127.0.0.1:{server.port}: the server requires a password; write user and password into the "
        "store's URL: redis://USER:PASSWORD@HOST:PORT, or redis://:PASSWORD@HOST:PORT without a user"
    )


@pytest.mark.parametrize("option", ["decode_responses=true", "protocol=3", "protocol=3&decode_responses=true"])
def test_check_works_with_options_for_the_form_of_replies(check: Check, server: RedisServer, option: str) -> None:
    lines = of_store(check(settings(f"{server.url}?{option}"), "--store"))
    assert lines[-1] == "works: a unit was taken and its bucket reset"
    assert "rights   all that the limits need" in lines
