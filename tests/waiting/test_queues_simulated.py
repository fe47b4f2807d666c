"""Tests queues of requests for slots: a simulation with random events, and a test of each rule."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles import PROOF
from ratelimit_mw.engine.slot_queue import Queues, SlotDemand
from waiting.queue_world import PATIENCE, World

CLIENTS = [f"192.0.2.{number}" for number in range(1, 6)]
BAD, GOOD = "192.0.2.66", "192.0.2.1"
moves = st.lists(
    st.tuples(st.sampled_from(["arrives"] * 4 + ["ends", "ends", "ends elsewhere", "goes away"]), st.integers(0, 20)),
    max_size=60,
)


@pytest.mark.promise(3)
@settings(max_examples=5_000 if PROOF else 300, deadline=None)
@example(1, 1, [("arrives", 0)] * 8 + [("arrives", 1), ("ends elsewhere", 0)])
@example(1, 1, [("arrives", 0)] * 6 + [("arrives", 1), ("arrives", 2), ("ends elsewhere", 0)])
@given(st.integers(1, 3), st.integers(1, 5), moves)
def test_no_request_waits_for_free_slots_or_is_overtaken(own: int, shared: int, steps: list[tuple[str, int]]) -> None:
    world = World(own, shared)
    for move, which in steps:
        if move == "arrives":
            world.arrives(CLIENTS[which % len(CLIENTS)])
        elif move == "goes away" and world.waiting:
            world.goes_away(world.waiting[which % len(world.waiting)])
        elif move.startswith("ends") and world.at_work:
            world.ends(world.at_work[which % len(world.at_work)], elsewhere=move != "ends")
            if move != "ends":
                world.passes(1.0)  # seconds within which slots that another process releases are noticed
        assert [one.number for one in world.waiting if world.could_go(one)] == []
        assert world.overtaken == []
    while world.at_work:
        world.ends(world.at_work[0])
    assert (world.waiting, world.queues._queues, world.queues._by_bucket) == ([], {}, {})


def test_client_that_waits_for_its_own_slot_blocks_no_other_client() -> None:
    world = World(own=2, shared=10)
    hostile = [world.arrives(BAD) for _ in range(30)]
    assert [one.allowed for one in hostile[:3]] == [True, True, None]
    others = [world.arrives(f"198.51.100.{number}") for number in range(8)]
    assert [one.allowed for one in others] == [True] * 8
    late = world.arrives(GOOD)
    assert late.allowed is None  # all ten slots are taken
    world.ends(others[0])
    assert [late.allowed, hostile[2].allowed] == [True, None]
    world.ends(hostile[0])
    assert [one.allowed for one in hostile[2:4]] == [True, None]


def test_oldest_request_with_free_slots_is_admitted_first() -> None:
    world = World(own=1, shared=2)
    first, hog, behind = world.arrives(BAD), world.arrives(GOOD), world.arrives(BAD)
    waits = [world.arrives(client) for client in CLIENTS[1:4]]
    world.ends(hog)
    assert [one.allowed for one in (behind, *waits)] == [None, True, None, None]
    world.ends(first)
    assert [one.allowed for one in (behind, *waits)] == [True, True, None, None]
    world.ends(behind)
    assert [one.allowed for one in waits] == [True, True, None]
    assert world.overtaken == []


def test_client_gets_at_most_half_of_a_shared_queue() -> None:
    world = World(own=100, shared=1, queue=4)
    world.arrives(GOOD)
    assert [world.arrives(BAD).allowed for _ in range(4)] == [None, None, False, False]
    assert [world.arrives(client).allowed for client in CLIENTS[:3]] == [None, None, False]


def test_single_place_of_a_shared_queue_goes_to_the_first_request() -> None:
    world = World(own=100, shared=1, queue=1)
    world.arrives(GOOD)
    assert [world.arrives(BAD).allowed for _ in range(2)] == [None, False]


def test_client_gets_its_whole_own_queue() -> None:
    world = World(own=1, shared=0, queue=4)
    assert [world.arrives(BAD).allowed for _ in range(6)] == [True, None, None, None, None, False]


def test_places_in_different_queues_are_independent() -> None:
    """Requests that wait for a slot of their client take no place in the queue that all clients share."""
    world = World(own=1, shared=3, queue=2)
    assert [world.arrives(BAD).allowed for _ in range(4)] == [True, None, None, False]
    assert [world.arrives(client).allowed for client in CLIENTS[:5]] == [True, True, None, None, False]


@pytest.mark.promise(1)
def test_waiting_request_queries_the_store_at_growing_intervals() -> None:
    """At arrival, 0.1, 0.3, 0.7, 1.5, 2.5 seconds later and so on, and at the end to be counted as refused."""
    world = World(own=1, shared=0, queue_timeout=5)
    world.arrives(GOOD)
    waits = world.arrives(GOOD)
    world.passes(4.9)
    assert (waits.allowed, waits.calls) == (None, ["take"] * 8)
    world.passes(0.1)
    assert (waits.allowed, waits.calls) == (False, ["take"] * 9)


@pytest.mark.promise(1)
def test_each_released_slot_is_taken_with_one_take() -> None:
    """A take shows whether a slot is left, so the next request does not query the store too early."""
    world = World(own=1, shared=0)
    at_work = world.arrives(GOOD)
    line = [world.arrives(GOOD) for _ in range(10)]
    for one in line:
        world.ends(at_work)
        assert one.allowed
        at_work = one
    assert [one.calls for one in line] == [["take", "take"], *[["peek", "take"]] * 9]


@pytest.mark.promise(1)
def test_new_requests_do_not_postpone_the_next_query_of_a_full_bucket() -> None:
    world = World(own=1, shared=0)
    at_work, waits = world.arrives(GOOD), world.arrives(GOOD)
    for _ in range(20):
        world.passes(0.05)
        world.arrives(GOOD)
    world.ends(at_work, elsewhere=True)
    world.passes(1.0)
    assert waits.allowed


def test_slot_released_during_a_refusal_is_not_lost() -> None:
    """The slot is released after the store refused the request, but before the request joins the queue."""
    queues = Queues()
    wish = SlotDemand({("a", ""): 1}, PATIENCE)
    release_count = queues.release_count
    queues.wake([("a", "")])
    place = queues.join(wish, [("a", "")], lambda: None, release_count)
    assert place is not None
    assert place.may_try
    queues.wake([("a", "")])  # a release during the attempt has the same effect
    queues.record_refusal(place, [("a", "")])
    assert place.may_try
    queues.record_refusal(place, [("a", "")])
    assert not place.may_try
    queues.wake([("a", "")])
    assert place.may_try


def test_client_with_many_waiting_requests_takes_turns_with_another() -> None:
    world = World(own=100, shared=4, fair_share="ip")
    hog = [world.arrives(BAD) for _ in range(20)]
    other = [world.arrives(GOOD) for _ in range(4)]
    assert [one.allowed for one in hog[:5]] == [True] * 4 + [None]
    admitted = []
    for one in hog[:4]:
        before = {request for request in [*hog, *other] if request.allowed}
        world.ends(one)
        admitted += [request in other for request in [*hog, *other] if request.allowed and request not in before]
    assert admitted in ([True, False, True, False], [False, True, False, True])


def test_waiting_request_is_found_by_other_processes() -> None:
    """A request of another process, which takes slots at the store, leaves them to one that waits here."""
    world = World(own=100, shared=4, fair_share="ip")
    hog = [world.arrives(BAD) for _ in range(4)]
    waits = world.arrives(GOOD)
    elsewhere = hog[0].slots[0]
    for one in hog[:2]:
        world.ends(one, elsewhere=True)
        assert not world.store.take([elsewhere])[0].allowed
        world.passes(1.0)
        assert waits.allowed
        waits = world.arrives(GOOD)
    world.ends(hog[2], elsewhere=True)
    assert world.store.take([elsewhere])[0].allowed  # each has its share, so nobody waits for one
    assert waits.allowed is None
