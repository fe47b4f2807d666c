"""Checks that a group is encoded once if the same tuple is used again, and otherwise each time."""

from ratelimit_mw import Charge, FixedWindow
from ratelimit_mw.stores.lifecycle import StoreOverrides
from ratelimit_mw.stores.redis import commands as talk
from ratelimit_mw.stores.redis.commands import RedisCommands
from ratelimit_mw.testing import Clock

LIMIT = FixedWindow(5, 60)


def own() -> RedisCommands:
    return RedisCommands("rl:", 1.0, Clock(), is_cluster=False)


def test_a_tuple_is_encoded_once_and_kept_alive() -> None:
    store, original_charges = own(), (Charge("a", LIMIT), Charge("b", LIMIT))
    encoded_group = store._encode_group(original_charges)
    assert encoded_group.keys == [b"rl:1:a:5/60s_using_fixed_window", b"rl:1:b:5/60s_using_fixed_window"]
    assert store._encode_group(original_charges) is encoded_group
    assert encoded_group.original_charges is original_charges  # so that no other object can get its id


def test_a_list_is_encoded_each_time() -> None:
    store, original_charges = own(), [Charge("a", LIMIT)]
    first = store._encode_group(original_charges)
    original_charges[0] = Charge("b", LIMIT)
    second = store._encode_group(original_charges)
    assert [first.keys, second.keys] == [
        [b"rl:1:a:5/60s_using_fixed_window"],
        [b"rl:1:b:5/60s_using_fixed_window"],
    ]


def test_an_equal_tuple_is_encoded_separately() -> None:
    store = own()
    assert store._encode_group((Charge("a", LIMIT),)) is not store._encode_group((Charge("a", LIMIT),))


def test_the_number_of_cached_encodings_is_bounded() -> None:
    store = own()
    for number in range(talk._MAX_ENCODED_GROUPS):
        store._encode_group((Charge(str(number), LIMIT),))
    assert len(store._encoded_groups) == talk._MAX_ENCODED_GROUPS
    store._encode_group((Charge("more", LIMIT),))
    assert len(store._encoded_groups) == 1


def test_a_key_prefix_override_changes_the_encoded_keys() -> None:
    store, original_charges = own(), (Charge("a", LIMIT),)
    store._encode_group(original_charges)
    store._apply(StoreOverrides(key_prefix="room:"), empty=True)
    assert store._encode_group(original_charges).keys == [b"rl:1:room:a:5/60s_using_fixed_window"]
