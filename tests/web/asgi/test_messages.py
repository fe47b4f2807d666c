"""Tests limits on websocket messages: which apply, their buckets, and what happens to a refused message."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ratelimit_mw import ConfigError, MemoryStore, StoreError, wsgi
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.starlette import limit
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer
from web.asgi_talk import HTTP, WEBSOCKET, App200, talk
from web.messages import NAME, found, message_of
from web.websocket_talk import (
    ACCEPT,
    CLOSED,
    CONNECT,
    DOWN,
    ENDED,
    FORBIDDEN,
    GONE,
    Echo,
    chat,
    ended,
    limited,
    says,
    spoken,
)
from web.wsgi_talk import hello

ONE, TWO, THREE, FOUR = (says(text) for text in ("one", "two", "three", "four"))
Test = Callable[[Any, Clock], Awaitable[None]]


@pytest.fixture(params=["memory", "redis"])
def over(request: pytest.FixtureRequest) -> Iterator[Callable[[Test], None]]:
    """Return a function that runs a test with an empty store and a manual clock."""
    clock = Clock()

    async def over_redis(test: Test, server: RedisServer) -> None:
        store = AsyncRedisStore(server.url, clock=clock, timeout=60.0)
        while True:
            try:
                await store.apeek([Charge("ready", parse("1/second")[0])])
                break
            except StoreError:  # the first connection is not open yet
                await asyncio.sleep(0.01)
        await test(store, clock)
        await store.aclose()

    if request.param == "memory":
        yield lambda test: asyncio.run(test(MemoryStore(clock=clock), clock))  # type: ignore[arg-type]  # a coroutine
    else:
        server: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
        server.ask("FLUSHALL")
        yield lambda test: asyncio.run(over_redis(test, server))


@pytest.mark.promise(11)
def test_admitted_messages_pass_unchanged_and_a_refusal_closes_the_websocket(over: Any) -> None:
    async def test(store: Any, _: Clock) -> None:
        app = Echo()
        wire = await spoken(limited(app, messages="2/second", store=store), ONE, TWO, THREE, FOUR)
        assert app.got == [CONNECT, ONE, TWO, ENDED]
        assert all(got is given for got, given in zip(app.got, [CONNECT, ONE, TWO], strict=False))
        assert wire.sent[0] is ACCEPT
        assert wire.sent[1:] == [
            {"type": "websocket.send", "text": "one"},
            {"type": "websocket.send", "text": "two"},
            CLOSED,
        ]
        assert wire.left == ["four"], "nothing is read that nobody asked for"

    over(test)


@pytest.mark.promise(11)
def test_dropped_messages_do_not_reach_the_app_and_later_ones_do(over: Any) -> None:
    async def test(store: Any, clock: Clock) -> None:
        app = Echo()
        one = limited(app, messages="2/second using fixed_window", on_message_refused="drop", store=store)
        wire = await spoken(one, ONE, TWO, THREE, lambda: clock.advance(1), FOUR)
        assert app.got == [CONNECT, ONE, TWO, FOUR, GONE]
        assert app.got[-1] is GONE
        assert wire.types == ["websocket.accept", *["websocket.send"] * 3]

    over(test)


@pytest.mark.promise(10)
def test_each_client_has_one_bucket_for_all_its_websockets(over: Any) -> None:
    async def test(store: Any, _: Clock) -> None:
        app = Echo()
        one = limited(app, messages="3/second", store=store)
        texts = [says(text) for text in "ab"]
        ends = [
            ended(await spoken(one, *texts, path=path, client=(client, 1)))
            for path, client in [("/a", "192.0.2.1"), ("/b", "192.0.2.1"), ("/a", "192.0.2.2")]
        ]
        assert ends == [None, CLOSED, None]
        assert app.texts == ["a", "b", "a", "a", "b"]

    over(test)


@pytest.mark.promise(1, 2)
def test_a_message_is_charged_to_all_its_limits_or_none(over: Any) -> None:
    async def test(store: Any, clock: Clock) -> None:
        rule = {"path": "/chat", "limits": [], "final": False, "messages": {"limit": "9/hour", "key": "all"}}
        settings: dict[str, Any] = {"messages": "2/second using fixed_window; 3/hour", "on_message_refused": "drop"}
        app = Echo()
        one = limited(app, rules=[rule], store=store, **settings)
        await spoken(one, ONE, TWO, *[THREE] * 50, lambda: clock.advance(1), FOUR, path="/chat")
        assert app.texts == ["one", "two", "four"], "what the second refused, the hour has not counted"
        left = app.scopes[0]["state"]["ratelimit"].message.verdict
        assert [charge.key for charge in left.charges] == [
            "{all=all}:chat/messages",
            "{ip=192.0.2.1}:/messages",
            "{ip=192.0.2.1}:/messages",
        ]
        assert [decision.remaining for decision in left.decisions] == [6, 1, 0]

    over(test)


# which limits apply


def taken(settings: dict[str, Any], path: str = "/chat", **scope: Any) -> list[list[str]]:
    """Return the buckets of each store call: those of the handshake, if any, then those of a message."""
    store = RecordingStore(clock=Clock())
    chat({"store": store, **settings}, "one", path=path, **scope)
    return [[charge.key.removeprefix("{ip=192.0.2.1}:") for charge in charges] for _, charges in store.calls]


TOP = {"messages": "20/second"}
CHAT = {"path": "/chat", "limits": []}
OWN = {**CHAT, "messages": "5/second"}
ANY = {"path": "/{rest:path}", "name": "any", "limits": []}


@pytest.mark.promise(1, 9)
@pytest.mark.parametrize(
    ("settings", "buckets"),
    [
        ({}, []),
        ({"messages": []}, []),
        (TOP, [["/messages"]]),
        ({**TOP, "limits": "9/hour"}, [["default"], ["/messages"]]),
        ({**TOP, "rules": [CHAT]}, [["/messages"]]),
        ({**TOP, "rules": [OWN]}, [["chat/messages"]]),
        ({"rules": [OWN]}, [["chat/messages"]]),
        ({"rules": [{**OWN, "limits": "9/hour"}]}, [["chat"], ["chat/messages"]]),
        ({"rules": [{**OWN, "name": "messages"}]}, [["messages/messages"]]),
        ({**TOP, "rules": [{**CHAT, "limits": "9/hour", "name": "messages"}]}, [["messages"], ["/messages"]]),
        ({**TOP, "rules": [{**CHAT, "messages": []}]}, []),
        ({**TOP, "rules": [{"path": "/chat", "exempt": True}]}, []),
        ({**TOP, "rules": [{"path": "/chat", "exempt": True, "final": False}]}, [["/messages"]]),
        ({**TOP, "rules": [{**OWN, "path": "/other"}]}, [["/messages"]]),
        ({**TOP, "rules": [{**OWN, "final": False}]}, [["chat/messages", "/messages"]]),
        ({**TOP, "rules": [{**CHAT, "final": False}]}, [["/messages"]]),
        ({**TOP, "rules": [{**CHAT, "final": False}, {**ANY, "messages": []}]}, []),
        ({**TOP, "rules": [{**OWN, "final": False}, {**ANY, "messages": "7/second"}]},
         [["chat/messages", "any/messages"]]),
        ({**TOP, "rules": [{**OWN, "final": False}, ANY]}, [["chat/messages", "/messages"]]),
        ({**TOP, "rules": [{**OWN, "shadow": True}]}, [["chat/messages", "/messages"]]),
        ({**TOP, "exempt": ["/chat"]}, []),
        ({**TOP, "safelist": ["192.0.2.0/24"]}, []),
        ({**TOP, "enabled": False}, []),
        ({**TOP, "enabled": lambda _: False}, []),
        ({**TOP, "missing_key": "exempt", "key": "user"}, []),
    ],
)  # fmt: skip
def test_settings_determine_the_limits_of_a_message(settings: dict[str, Any], buckets: list[list[str]]) -> None:
    assert taken(settings) == buckets


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("other", "buckets"),
    [
        ({"messages": "7/second"}, ["other/messages", "chat/messages"]),
        ({"messages": []}, ["chat/messages"]),
        ({}, ["chat/messages", "/messages"]),
    ],
)
def test_limits_of_both_forms_of_a_path_apply_to_messages(other: Any, buckets: list[str]) -> None:
    rules = [OWN, {"path": "/{x}/../chat", "name": "other", "limits": [], **other}]
    assert taken({**TOP, "rules": rules}, path="/x/../chat") == [buckets]


def test_message_limits_do_not_charge_http_requests() -> None:
    store = RecordingStore(clock=Clock())
    app = App200()
    talk(limited(app, store=store, **TOP), HTTP)
    assert store.calls == []
    assert app.scopes[0]["state"]["ratelimit"].verdict is None


def test_names_of_rules_and_limits_cannot_equal_a_message_bucket() -> None:
    """Message buckets contain a slash. Names of rules and of endpoint limits cannot."""
    assert taken({**TOP, "rules": [{**OWN, "final": False}]}) == [["chat/messages", "/messages"]]
    for name in ("chat/messages", "/messages"):
        wrong = f"name: {found(name, NAME)}"
        assert message_of(limits=[], rules=[{**CHAT, "name": name}]) == f"rules[0].{wrong}"
        assert message_of(limits=[{"limit": "5/second", "name": name}]) == f"limits[0].{wrong}"
        with pytest.raises(ConfigError, match=f"^{re.escape(wrong)}"):
            limit("5/second", name=name)


# key, cost, tier


@pytest.mark.promise(10)
def test_message_limits_use_the_key_of_the_rule_or_middleware_that_sets_them() -> None:
    headers = [(b"x-room", b"7")]
    assert taken({**TOP, "rules": [{**OWN, "key": "header:x-room+ip"}]}, headers=headers) == [
        ["{header:x-room=7+ip=192.0.2.1}:chat/messages"]
    ]
    assert taken({**TOP, "rules": [{**CHAT, "key": "header:x-room+ip"}]}, headers=headers) == [["/messages"]]


def costs(settings: dict[str, Any]) -> list[list[int]]:
    store = RecordingStore(clock=Clock())
    chat({"store": store, **settings}, "one", path="/chat")
    return [[charge.cost for charge in charges] for _, charges in store.calls]


def test_a_message_costs_one_unit_unless_its_limit_sets_a_cost() -> None:
    limit = {"limit": "9/second", "cost": 3}
    assert costs({"rules": [{**OWN, "limits": "9/hour", "cost": 5}]}) == [[5], [1]]
    assert costs({"rules": [{**OWN, "messages": [limit, "50/minute"], "cost": 5}]}) == [[3, 1]]
    assert costs({"messages": {**limit, "cost": lambda _: 2}}) == [[2]]


@pytest.mark.parametrize(("plan", "admitted"), [(b"pro", 3), (b"free", 1), (b"none", 1)])
def test_message_limits_depend_on_the_tier(plan: bytes, admitted: int) -> None:
    tiers = {"free": "1/second", "pro": "3/second"}
    for settings in ({"messages": tiers}, {"rules": [{**CHAT, "messages": tiers}]}):
        own: dict[str, Any] = {"store": MemoryStore(clock=Clock()), "tier": "header:x-plan", "key": "ip", **settings}
        app, _ = chat(own, *"abcd", path="/chat", headers=[(b"x-plan", plan)])
        assert len(app.texts) == admitted


def test_callables_of_message_limits_run_once_per_websocket() -> None:
    asked: list[str] = []

    async def room(request: Any) -> str:
        asked.append("key")
        return str(request.path)

    def weight(_: Any) -> int:
        asked.append("cost")
        return 2

    async def limits(_: Any) -> str:
        asked.append("limits")
        return "9/second"

    for messages in ({"limit": "9/second", "key": room, "cost": weight}, limits):
        store = RecordingStore(clock=Clock())
        chat({"store": store, "messages": messages}, *"abc")
        assert len(store.calls) == 3
    assert asked == ["key", "cost", "limits"]
    wsgi.RateLimitMiddleware(hello, limits=[], messages=limits).close()  # WSGI never calls `limits`


def raises(_: Any) -> str:
    raise ZeroDivisionError


def collides(_: Any) -> Any:
    return ["9/second using gcra", {"limit": "9/second using gcra", "key": "ip", "shadow": True}]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("settings", "texts", "end"),
    [
        ({"messages": "2/second", "rules": [{**CHAT, "messages": raises}]}, "ab", CLOSED),
        ({"messages": "2/second", "rules": [{**CHAT, "messages": collides}]}, "ab", CLOSED),
        ({"messages": collides}, "", DOWN),
        ({"messages": raises}, "", DOWN),
        ({"rules": [{**CHAT, "messages": raises}]}, "", DOWN),
        ({"messages": "1/second", "rules": [{**OWN, "messages": raises, "shadow": True}]}, "a", CLOSED),
        ({"rules": [{**OWN, "messages": raises, "shadow": True}]}, "abc", None),
        ({"messages": raises, "shadow": True}, "abc", None),
        ({"rules": [{**CHAT, "messages": raises}], "shadow": True}, "abc", None),
        ({"messages": {"limit": "2/second", "cost": raises}}, "ab", CLOSED),
        ({"messages": {"limit": "2/second", "key": raises}}, "ab", CLOSED),
        ({"messages": {"limit": "2/second", "key": raises}, "missing_key": "exempt"}, "ab", CLOSED),
        ({"messages": "2/second", "key": "user", "missing_key": "shared"}, "ab", CLOSED),
        ({"messages": "2/second", "key": "user", "missing_key": "deny"}, "", FORBIDDEN),
        ({"messages": "2/second", "key": "user", "missing_key": "deny", "on_message_refused": "drop"}, "", FORBIDDEN),
    ],
)
def test_failing_callables_and_missing_keys_do_not_lift_message_limits(
    settings: dict[str, Any], texts: str, end: Any
) -> None:
    app, wire = chat({"store": MemoryStore(clock=Clock()), **settings}, *"abc", path="/chat")
    assert ("".join(app.texts), ended(wire)) == (texts, end)


# close or drop


DROP = {"on_message_refused": "drop"}


@pytest.mark.parametrize(
    ("settings", "closes"),
    [
        ({"messages": "1/second"}, True),
        ({"messages": "1/second", **DROP}, False),
        ({"messages": "1/second", **DROP, "rules": [{**CHAT, "on_message_refused": "close"}]}, True),
        ({"messages": "1/second", "rules": [{**CHAT, **DROP}]}, False),
        ({"rules": [{**CHAT, "messages": "1/second", **DROP}]}, False),
        ({"rules": [{**CHAT, "messages": "1/second", **DROP, "final": False}]}, False),
        ({"messages": "9/second", "rules": [{**CHAT, "messages": "1/second", **DROP, "final": False}]}, True),
        ({"messages": "1/second", **DROP, "rules": [{**OWN, "shadow": True, "on_message_refused": "close"}]}, False),
        ({"messages": "1/second", **DROP, "rules": [{**OWN, "final": False, "on_message_refused": "close"}]}, True),
    ],
)
def test_rules_set_on_message_refused_and_close_overrides_drop(settings: dict[str, Any], closes: bool) -> None:
    app, wire = chat({"store": MemoryStore(clock=Clock()), **settings}, *"abc", path="/chat")
    assert app.texts == ["a"]
    assert ended(wire) == (CLOSED if closes else None)


@pytest.mark.parametrize(
    "settings",
    [
        {"messages": "1/second", "shadow": True},
        {"messages": {"limit": "1/second", "shadow": True}},
        {"rules": [{**CHAT, "messages": "1/second", "shadow": True}]},
    ],
)
def test_shadow_limits_refuse_no_message_and_record_their_decision(settings: dict[str, Any]) -> None:
    app, wire = chat({"store": MemoryStore(clock=Clock()), **settings}, *"abc", path="/chat")
    assert (app.texts, ended(wire)) == (["a", "b", "c"], None)
    verdict = app.scopes[0]["state"]["ratelimit"].message.verdict
    assert (verdict.allowed, [decision.allowed for decision in verdict.decisions]) == (True, [False])


# store errors


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("settings", "texts", "end"),
    [
        ({"on_store_error": "allow"}, "abcd", None),
        ({"on_store_error": "deny"}, "", DOWN),
        ({"on_store_error": "deny", **DROP}, "", DOWN),
        ({"on_store_error": "local"}, "ab", CLOSED),
        ({"on_store_error": "local", **DROP}, "ab", None),
        ({"on_store_error": "allow", "rules": [{**CHAT, "on_store_error": "deny"}]}, "", DOWN),
        ({"on_store_error": "deny", "rules": [{**CHAT, "on_store_error": "allow"}]}, "abcd", None),
        ({"on_store_error": "allow", "rules": [{**OWN, "messages": "1/second", "on_store_error": "local"}]},
         "a", CLOSED),
    ],
)  # fmt: skip
def test_on_store_error_applies_to_messages(settings: dict[str, Any], texts: str, end: Any) -> None:
    store = RecordingStore(clock=Clock())
    store.error = ConnectionError("down")
    app, wire = chat({"store": store, "messages": "2/hour", **settings}, *"abcd", path="/chat")
    assert ("".join(app.texts), ended(wire)) == (texts, end)


# nested middlewares, and the verdict in the app


def test_nested_middlewares_charge_a_shared_bucket_once() -> None:
    store = RecordingStore(clock=Clock())
    outer = {"store": store, "messages": "3/second"}
    for inner, calls in [(outer, 3), ({**outer, "messages": "2/second", **DROP}, 6)]:
        store.calls.clear()
        app = Echo()
        wire = asyncio.run(spoken(limited(limited(app, **inner), **outer), *map(says, "abc")))
        assert (len(store.calls), ended(wire)) == (calls, None)
        store.reset([charge for _, charges in store.calls for charge in charges])
    assert app.texts == ["a", "b"]
    verdict = app.scopes[0]["ratelimit_mw"].message.verdict
    assert [charge.limit.quota for charge in verdict.charges] == [2, 3]


def test_each_nested_middleware_settles_a_message_in_its_own_store() -> None:
    outer, inner = RecordingStore(clock=Clock()), RecordingStore(clock=Clock())
    app = Echo()
    around = limited(limited(app, store=inner, messages="9/second"), store=outer, messages="5/second")
    asyncio.run(spoken(around, ONE))
    app.scopes[0]["state"]["ratelimit"].message.settle(3)
    for store, quota in ((outer, 5), (inner, 9)):
        settled = [
            (charge.limit.quota, charge.cost) for verb, group in store.calls if verb == "settle" for charge in group
        ]
        assert settled == [(quota, 2)]


@pytest.mark.promise(8, 9)
def test_inner_middleware_charges_messages_admitted_by_an_outer_store_error() -> None:
    broken = RecordingStore(clock=Clock())
    broken.error = ConnectionError("down")
    settings = {"messages": "1/second", "store": MemoryStore(clock=Clock())}
    app = Echo()
    around = limited(limited(app, **settings), **{**settings, "store": broken, "on_store_error": "allow"})
    assert ended(asyncio.run(spoken(around, ONE, TWO))) == CLOSED
    assert app.texts == ["one"]


@pytest.mark.parametrize("limits", [[], "9/minute"])
def test_the_app_can_read_the_verdict_on_the_last_message(limits: Any) -> None:
    app, _ = chat({"limits": limits, "messages": "2/second", "store": MemoryStore(clock=Clock())}, *"abc")
    outcome = app.scopes[0]["state"]["ratelimit"]
    assert (outcome.verdict is None) == (limits == [])
    assert (outcome.message.verdict.allowed, outcome.message.verdict.limit) == (False, 2)
    assert outcome.message.verdict.rule == "default"


def test_the_handshake_is_still_charged_to_the_request_limits() -> None:
    settings = {"limits": "1/minute", "messages": "9/second", "store": MemoryStore(clock=Clock())}
    one = limited(Echo(), **settings)
    assert asyncio.run(spoken(one, ONE)).types == ["websocket.accept", "websocket.send"]
    assert talk(one, WEBSOCKET, CONNECT).sent == [CLOSED]
