"""The minimum rights of a Redis user: with them every call works, and without any one of them a call fails."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from algorithms.at_once import TAKEN, at_once
from ratelimit_mw import Charge, StoreError, parse
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.blocking import Blocking
from redis_cluster import RedisCluster
from redis_servers import RedisServer
from stores.opened import Open, each_kind

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/redis.md"
RULES = re.findall(r"^ +ACL SETUSER ratelimit (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
FIXED = "on >a-long-password ~rl:1:* resetchannels -@all"
COMMANDS = [rule.removeprefix("+") for rule in RULES[0].removeprefix(FIXED).split()]
ON_A_CLUSTER = [rule.removeprefix("+") for rule in RULES[1].split()]
LIMITS = [at_once(kind, 10, 60) for kind in TAKEN.values()]
MANY_BUCKETS = "100/minute using sliding_window_counter buckets 10"

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis]


def grant(server: RedisServer, commands: list[str]) -> None:
    """Give the user these commands, and no others."""
    rules = " ".join(["reset", FIXED, *(f"+{command}" for command in commands)])
    assert server.ask(f"ACL SETUSER ratelimit {rules}") == "+OK"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(redis_server.binary) as server:
        yield server


def url(place: str) -> str:
    return place.replace("://", "://ratelimit:a-long-password@").removesuffix("/0")


def use(store: Store, server: RedisServer | None, clock: Clock) -> None:
    """Call every operation of a store."""
    for limit in LIMITS:
        charge = Charge("{k}:r", limit, 4)
        taken = store.take([charge])[0]
        assert (taken.allowed, taken.remaining) == (True, 6)
        assert store.peek([charge])[0].remaining == 2
        assert store.take([charge, Charge("{k}:s", limit)])[0].remaining == 2
        if limit.borrows:
            assert store.take([charge])[0].remaining == 0
        assert not store.take([charge])[0].allowed
        store.settle([Charge("{k}:r", limit, 1)])
        store.settle([Charge("{k}:r", limit, -1, at=taken.at), Charge("{k}:s", limit, -1, at=taken.at)])
        clock.now -= 0.5  # the script moves states that are ahead of the clock
        store.take([Charge("{k}:r", limit)])
        clock.advance(100)
        store.take([charge])
        store.settle([Charge("{k}:r", limit, -4, at=round(clock.now * 1e6))])
        store.reset([charge])
    look(store)
    if server is not None:  # the server drops its scripts, and the store sends them again
        assert server.ask("SCRIPT FLUSH") == "+OK"
        store.take([Charge("{k}:r", LIMITS[0])])


def look(store: Any) -> None:
    """Look for overrides."""
    known = "none"
    if isinstance(store, Blocking):
        store._run(store._store.aread_overrides(known))  # type: ignore[attr-defined]  # of a store on a server
    else:
        store.read_overrides(known)


def used(opened: Open, server: RedisServer) -> None:
    """Use a store with an injected clock, and then one with the server's clock."""
    clock = Clock()
    with opened(url(server.url), timeout=5, clock=clock) as store:
        use(store, server, clock)
    with opened(url(server.url), timeout=5) as store:
        assert store.take([Charge("{t}:r", LIMITS[0])])[0].allowed


def test_page_has_two_acl_rules_with_sorted_commands() -> None:
    assert RULES[0].startswith(FIXED)
    assert sorted(COMMANDS) == COMMANDS
    assert len(RULES) == 2


@each_kind
def test_store_works_with_the_documented_commands(opened: Open, server: RedisServer) -> None:
    grant(server, COMMANDS)
    used(opened, server)


@pytest.mark.parametrize("missing", COMMANDS)
@each_kind
def test_store_needs_each_documented_command(opened: Open, missing: str, server: RedisServer) -> None:
    grant(server, [command for command in COMMANDS if command != missing])
    with pytest.raises(StoreError, match=r"permission|can't run this command") as caught:
        used(opened, server)
    if "permission" in str(caught.value):  # before Redis 7.2, only the ACL log names a script's command
        assert f"'{missing}'" in str(caught.value) or f"'{missing.partition('|')[0]}'" in str(caught.value)
    with Redis.from_url(server.url) as client:
        assert missing.partition("|")[0] in str(client.acl_log()[0]["object"])


@each_kind
def test_user_cannot_access_keys_with_another_prefix(opened: Open, server: RedisServer) -> None:
    grant(server, COMMANDS)
    with opened(url(server.url), timeout=5, prefix="other:") as store, pytest.raises(StoreError):
        store.take([Charge("{k}:r", LIMITS[0])])


@each_kind
def test_peek_of_an_unreadable_bucket_raises_store_error(opened: Open, server: RedisServer) -> None:
    charges = [Charge("{k}:r", limit, 10) for limit in [*LIMITS, *parse(MANY_BUCKETS)]]
    with opened(url(server.url), timeout=5) as store:
        grant(server, COMMANDS)
        store.take(charges)
        grant(server, [command for command in COMMANDS if command not in {"get", "zrange"}])
        for charge in charges:
            with pytest.raises(StoreError):
                store.peek([charge])
        grant(server, COMMANDS)
        assert [decision.remaining for decision in store.peek(charges)] == [0] * len(LIMITS) + [90]


CHANGES: Mapping[str, Callable[[RedisServer], object]] = {
    "nothing is permitted": lambda server: grant(server, []),
    "the user is gone": lambda server: server.ask("ACL DELUSER ratelimit"),
    "the password is another": lambda server: server.ask("ACL SETUSER ratelimit resetpass >other"),
}


@each_kind
@pytest.mark.parametrize("change", CHANGES)
def test_calls_fail_without_rights_and_succeed_once_rights_return(
    opened: Open, change: str, server: RedisServer
) -> None:
    charge = Charge("{k}:r", LIMITS[0])
    grant(server, COMMANDS)
    with opened(url(server.url), timeout=5) as store:
        assert store.take([charge])[0].remaining == 9
        CHANGES[change](server)
        server.ask("CLIENT KILL TYPE normal SKIPME yes")
        with pytest.raises(StoreError, match=r"permission|invalid username-password|the connection was lost|closed"):
            [store.take([charge]) for _ in range(2)]
        grant(server, COMMANDS)
        assert eventually(store, charge) == 8


@each_kind
def test_calls_fail_while_the_server_requires_a_password(opened: Open, server: RedisServer) -> None:
    charge = Charge("{k}:r", LIMITS[0])
    with opened(server.url, timeout=5) as store:
        assert store.take([charge])[0].remaining == 9
        with Redis.from_url(server.url) as client:
            client.config_set("requirepass", "x")
            client.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(StoreError, match=r"Authentication required|unauthenticated|lost|closed"):
                [store.take([charge]) for _ in range(2)]
            client.config_set("requirepass", "")
        assert eventually(store, charge) == 8


def eventually(store: Store, charge: Charge) -> int:
    """Take a unit, and return how many remain. Tries twice, as the first call may still fail for the earlier reason."""
    try:
        return store.take([charge])[0].remaining
    except StoreError:
        return store.take([charge])[0].remaining


@contextmanager
def allowed_on(cluster: RedisCluster, commands: list[str]) -> Iterator[str]:
    for node in cluster.nodes:
        grant(node, commands)
    yield url(cluster.url)
    for node in cluster.nodes:
        node.ask("ACL DELUSER ratelimit")


@each_kind
def test_store_on_a_cluster_works_with_the_documented_commands(opened: Open, redis_cluster: RedisCluster) -> None:
    clock = Clock()
    with allowed_on(redis_cluster, COMMANDS + ON_A_CLUSTER) as place, opened(place, timeout=5, clock=clock) as store:
        use(store, None, clock)
        assert len(store.take([Charge(f"{{{name}}}:r", LIMITS[0]) for name in "abc"])) == 3


@pytest.mark.parametrize("missing", ON_A_CLUSTER)
@each_kind
def test_store_on_a_cluster_needs_each_extra_command(opened: Open, missing: str, redis_cluster: RedisCluster) -> None:
    source = redis_cluster.owner(15495)  # the slot of {a}
    target = next(node for node in redis_cluster.nodes if node is not source)
    left = [command for command in COMMANDS + ON_A_CLUSTER if command != missing]
    ids = {node: node.ask("CLUSTER MYID").splitlines()[-1] for node in (source, target)}
    with allowed_on(redis_cluster, left) as place, opened(place, timeout=5) as store:
        try:  # the slot migrates and the key is missing, so the store queries the new node
            assert target.ask(f"CLUSTER SETSLOT 15495 IMPORTING {ids[source]}") == "+OK"
            assert source.ask(f"CLUSTER SETSLOT 15495 MIGRATING {ids[target]}") == "+OK"
            with pytest.raises(StoreError, match=f"permissions to run the '{missing.partition('|')[0]}"):
                store.take([Charge("{a}:r", LIMITS[0])])
        finally:
            for node in (source, target):
                node.ask("CLUSTER SETSLOT 15495 STABLE")
