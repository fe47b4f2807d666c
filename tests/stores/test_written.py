"""What a server is told of a group is written once for a tuple that is asked again, and anew for everything else."""

from ratelimit_mw import Charge, FixedWindow
from ratelimit_mw.stores import talk
from ratelimit_mw.stores.live import Stage
from ratelimit_mw.stores.talk import Talk
from ratelimit_mw.testing import Clock

LIMIT = FixedWindow(5, 60)


def own() -> Talk:
    return Talk("rl:", 1.0, Clock(), slots=False, codec="packed")


def test_a_tuple_is_written_once_and_held_on_to() -> None:
    store, asked = own(), (Charge("a", LIMIT), Charge("b", LIMIT))
    written = store._written(asked)
    assert written.keys == [b"rl:1:a:5/60s_using_fixed_window", b"rl:1:b:5/60s_using_fixed_window"]
    assert store._written(asked) is written
    assert written.asked is asked  # so that no other can have its identity


def test_a_list_may_change_and_is_written_anew() -> None:
    store, asked = own(), [Charge("a", LIMIT)]
    first = store._written(asked)
    asked[0] = Charge("b", LIMIT)
    second = store._written(asked)
    assert [first.keys, second.keys] == [
        [b"rl:1:a:5/60s_using_fixed_window"],
        [b"rl:1:b:5/60s_using_fixed_window"],
    ]


def test_an_equal_tuple_is_another_one() -> None:
    store = own()
    assert store._written((Charge("a", LIMIT),)) is not store._written((Charge("a", LIMIT),))


def test_so_many_are_kept_at_most() -> None:
    store = own()
    for number in range(talk._KNOWN):
        store._written((Charge(str(number), LIMIT),))
    assert len(store._known) == talk._KNOWN
    store._written((Charge("more", LIMIT),))
    assert len(store._known) == 1


def test_on_another_stage_the_keys_are_others() -> None:
    store, asked = own(), (Charge("a", LIMIT),)
    store._written(asked)
    store._enter(Stage(room="room:"), empty=True)
    assert store._written(asked).keys == [b"rl:1:room:a:5/60s_using_fixed_window"]
