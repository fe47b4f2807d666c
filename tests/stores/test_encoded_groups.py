"""Checks that groups which differ in their keys only are encoded once, and their keys each time."""

import pytest
from msgspec import field

from ratelimit_mw import Charge, ConfigError, FixedWindow
from ratelimit_mw.core.limit import PlainGroup
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.lifecycle import StoreOverrides
from ratelimit_mw.stores.redis import commands as talk
from ratelimit_mw.stores.redis.commands import RedisCommands
from ratelimit_mw.stores.redis.protocol import Command, NoCodec
from ratelimit_mw.stores.redis.scripts import encode_group
from ratelimit_mw.testing import Clock

LIMIT = FixedWindow(5, 60)


def own() -> RedisCommands:
    return RedisCommands("rl:", 1.0, Clock(), is_cluster=False)


def group(key: str, shape_key: object) -> PlainGroup:
    made = PlainGroup((Charge(key, LIMIT), Charge(f"{key}:2", LIMIT, cost=2)))
    made.shape_key = shape_key
    return made


def test_groups_of_one_template_share_their_arguments() -> None:
    store, template = own(), object()
    first, second = store._encode_group(group("a", template)), store._encode_group(group("b", template))
    assert first.keys == [b"rl:1:a:5/60s_using_fixed_window", b"rl:1:a:2:5/60s_using_fixed_window"]
    assert second.keys == [b"rl:1:b:5/60s_using_fixed_window", b"rl:1:b:2:5/60s_using_fixed_window"]
    assert second.shape is first.shape
    assert first.shape.text == encode_group("msgpack", first.original_charges)
    assert store._encode_group(group("a", object())).shape is not first.shape


def test_a_server_without_the_codec_gets_the_other_one() -> None:
    store, template = own(), object()
    sent: list[Command] = []

    class Old:
        async def send(self, command: Command) -> object:
            sent.append(command)
            if len(sent) == 1:
                raise NoCodec
            return [[1, 5, 4, 0, 0, 0, 0, 0], [1, 5, 3, 0, 0, 0, 0, 0]]

    run(store._take_unbatched(group("a", template), Old(), commit=True))  # type: ignore[arg-type]  # sends only
    assert store._encode_group(group("a", template)).shape.codec == "text"


def test_single_charges_that_differ_in_their_keys_share_their_arguments() -> None:
    store = own()
    first, second = (store._encode_group([Charge(key, FixedWindow(5, 60))]) for key in ("a", "b"))
    assert second.shape is first.shape
    for other in (Charge("a", LIMIT, cost=2), Charge("a", LIMIT, role="shadow"), Charge("a", FixedWindow(6, 60))):
        assert store._encode_group([other]).shape.text == encode_group("msgpack", [other]) != first.shape.text


def test_a_limit_without_a_hash_has_no_lua_implementation() -> None:
    class Own(FixedWindow, frozen=True):
        days: list[str] = field(default_factory=list)

    with pytest.raises(ConfigError, match="Own has no Lua implementation"):
        own()._encode_group([Charge("a", Own(5, 60))])


def test_a_list_is_encoded_each_time() -> None:
    store, original_charges = own(), [Charge("a", LIMIT)]
    first = store._encode_group(original_charges)
    original_charges[0] = Charge("b", LIMIT)
    second = store._encode_group(original_charges)
    assert [first.keys, second.keys] == [
        [b"rl:1:a:5/60s_using_fixed_window"],
        [b"rl:1:b:5/60s_using_fixed_window"],
    ]


def test_the_number_of_shapes_is_bounded() -> None:
    store = own()
    for _ in range(talk._MAX_SHAPES):
        store._encode_group(group("a", object()))
    assert len(store._shapes) == talk._MAX_SHAPES
    store._encode_group(group("a", object()))
    assert len(store._shapes) == 1


def test_a_key_prefix_override_changes_the_encoded_keys() -> None:
    store, original_charges = own(), (Charge("a", LIMIT),)
    store._encode_group(original_charges)
    store._apply(StoreOverrides(key_prefix="room:"), empty=True)
    assert store._encode_group(original_charges).keys == [b"rl:1:room:a:5/60s_using_fixed_window"]
