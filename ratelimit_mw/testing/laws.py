"""The laws that every algorithm keeps, tried on walks: `check_laws(MyLimit(100, 60))`.

Each law is a function of a limit and a walk. It raises `AssertionError` where the limit breaks it, and says whether
the walk led to what the law is about. They need nothing but this package; with Hypothesis, or any other source of
limits and walks, they can be called one by one.

Times are held to the microsecond. A limit that rounds its waits up to something coarser says so in an attribute
`tick_us`, microseconds: then it may refuse for less than one such tick too long.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Final

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.limit import MICROSECONDS, Charge, Decision, Limit, State, microseconds
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.testing.clock import Clock
from ratelimit_mw.testing.walks import START, Walk, random_walk

Law = Callable[[Limit, Walk], bool]


def check_laws(limit: Limit, *, walks: int = 200, seed: int = 0) -> None:
    """Try all `LAWS` of `limit` on random walks, always the same ones for one `seed`.

    Raises `AssertionError` that names the law, the limit, the seed and the shortest walk found on which it is broken;
    `the_law(limit, walk)` then shows it again.
    """
    _must(
        bool(limit.algorithm) and ALGORITHMS.get(limit.algorithm, type(limit)) is type(limit),
        f"{type(limit).__name__}.algorithm is {limit.algorithm!r}, allowed is a name of its own: it is part of the "
        "bucket's id, and two algorithms must not share states",
    )
    random = Random(seed)  # noqa: S311  # a test needs no secret
    tried = [random_walk(random) for _ in range(walks)]
    for law in LAWS:
        for number, walk in enumerate(tried):
            if _broken(law, limit, walk):
                shortest = _shortened(law, limit, walk)
                error = _broken(law, limit, shortest)
                how = str(error) if isinstance(error, AssertionError) else repr(error)
                raise AssertionError(
                    f"{law.__name__}: {how}\nlimit: {limit!r}\nwalk {number} of seed {seed}, shortened: {shortest!r}"
                ) from error


def is_pure(limit: Limit, walk: Walk) -> bool:
    """The same state decides the same again, whatever was made of it since: a store may ask twice, or go back."""
    points = list(walk.points(limit))
    for before, now, cost, decision, after in reversed(points):
        for delta in (1, -1):
            limit.settle(before, now + 1, delta, now)
        limit.decide(before, now + limit.window_us, 1, None)
        limit.decide(before, now, limit.most, None)
        again, state = limit.decide(before, now, cost, None)
        _must(again == decision, f"cost {cost} is answered {decision}, and {again} when the same state is asked again")
        for later in (now, now + _part(limit.window_us, walk)):
            first, second = _seen(limit, after, later), _seen(limit, state, later)
            _must(first == second, f"the same state and charge lead to {first}, and asked again to {second}")
    return bool(points)


def changes_nothing_for_cost_0(limit: Limit, walk: Walk) -> bool:
    """Cost 0 is admitted and gives back the very state it was given, even if that is None or from the future."""
    state, now = walk.end(limit)
    for kept in (None, state):
        for instant in (now, now - 10 * limit.window_us, now + limit.window_us // 3):
            decision, after = limit.decide(kept, instant, 0, None)
            _must(after is kept, f"cost 0 changes {kept} to {after}")
            admitted = (decision.allowed, decision.retry_after, decision.delay)
            _must(admitted == (True, 0.0, 0.0), f"cost 0 is answered {decision}")
    return True


def counts_what_it_admits_and_nothing_else(limit: Limit, walk: Walk) -> bool:
    """A decision shows what the state to keep shows; what is refused leaves as much as there was."""
    for before, now, cost, decision, after in walk.points(limit):
        seen, left = _seen(limit, before, now), _seen(limit, after, now)
        shown = (decision.limit, decision.remaining, decision.next_after, decision.reset_after)
        kept = (left.limit, left.remaining, left.next_after, left.reset_after)
        _must(shown == kept, f"cost {cost}: the decision shows {shown}, the state to keep {kept}")
        if decision.allowed:
            _must(decision.retry_after == 0.0, f"cost {cost} is admitted, with a retry_after of {decision.retry_after}")
            most = max(0, seen.remaining - cost)
            _must(left.remaining <= most, f"cost {cost} of {seen.remaining} leaves {left.remaining}")
        else:
            _must(decision.retry_after > 0.0, f"cost {cost} is refused, with a retry_after of {decision.retry_after}")
            _must(left == seen, f"cost {cost} is refused and changes {seen} to {left}")
        held = microseconds(decision.delay)
        _must(0 <= held <= (delay_us(limit) if decision.allowed else 0), f"cost {cost} has a delay of {held} us")
    for before, now, cost, decision, after in walk.forward.points(limit):
        later = now + _part(limit.window_us, walk)
        same = decision.allowed or _seen(limit, before, later) == _seen(limit, after, later)
        _must(same, f"cost {cost} is refused, and is felt {later - now} us later")
    return bool(walk.steps)


def never_admits_more_than_the_most(limit: Limit, walk: Walk) -> bool:
    """What is over `limit.most` is refused at all times, and told to wait for ever."""
    state, now = walk.end(limit)
    for kept in (None, state):
        for cost in (limit.most + 1, 10 * limit.most):
            for instant in (now, now + _part(limit.window_us, walk), now + 100 * limit.window_us):
                decision, _ = limit.decide(kept, instant, cost, None)
                never = not decision.allowed and math.isinf(decision.retry_after)
                _must(never or cost <= limit.most, f"the most is {limit.most}, and cost {cost} is answered {decision}")
    return True


def refuses_until_retry_after_and_admits_at_it(limit: Limit, walk: Walk) -> bool:
    """A client that waits exactly that long passes, and one that waits less does not."""
    state, now = walk.forward.end(limit)
    return _wait_is_true(limit, state, now, walk.cost(limit), walk)


def admits_one_unit_more_at_next_after_and_not_before(limit: Limit, walk: Walk) -> bool:
    """`remaining` units pass without being held back, one more does not; that one is there at `next_after`.

    Of a limit that `pays_later` they pass in whatever charges they come; a single larger one may pass too.
    """
    state, now = walk.forward.end(limit)
    shown = _seen(limit, state, now)
    _must(0 <= shown.remaining <= shown.limit, f"remaining is {shown.remaining} of {shown.limit}")
    more, _ = limit.decide(state, now, shown.remaining + 1, _at_once(limit))
    _must(not more.allowed or limit.pays_later, f"{shown.remaining} units are left, and {shown.remaining + 1} pass")
    taken, state = _all_taken(limit, state, now)
    more, _ = limit.decide(state, now, 1, _at_once(limit))
    _must(not more.allowed, f"{shown.remaining} units are taken, which is all there was, and one more passes")
    _must(taken.remaining == 0, f"all {shown.remaining} units were taken, and {taken.remaining} are left")
    _must(
        taken.next_after == shown.next_after,
        f"next_after is {shown.next_after}, and {taken.next_after} after what was left is taken",
    )
    wait = _whole(shown.next_after, "next_after")
    _must(wait > 0, "next_after is 0")
    for early in _early(wait, limit, walk):
        units = _seen(limit, state, now + early).remaining
        _must(units == 0, f"next_after is {wait} us, and {units} units are there after {early} us")
    units = _seen(limit, state, now + wait).remaining
    _must(units >= 1, f"next_after is {wait} us, and no unit is there then")
    return True


def is_whole_at_reset_after_and_not_before(limit: Limit, walk: Walk) -> bool:
    """All that can pass at once can pass at `reset_after`, and less before it."""
    state, now = walk.forward.end(limit)
    shown = _seen(limit, state, now)
    wait = _whole(shown.reset_after, "reset_after")
    whole = _seen(limit, state, now + wait)
    _must(whole.remaining == whole.limit, f"at reset_after {whole.remaining} of {whole.limit} are left")
    _must(whole.reset_after == 0.0, f"at reset_after it is {whole.reset_after} s")
    for early in _early(wait, limit, walk):
        left = _seen(limit, state, now + early).remaining
        _must(left < shown.limit, f"reset_after is {wait} us, and all is there after {early} us")
    return wait > 0


def peeks_what_the_next_hit_answers(limit: Limit, walk: Walk) -> bool:
    """In a store, peek answers what take then answers."""
    clock, last = Clock(START / MICROSECONDS), None
    store = MemoryStore(clock=clock)
    for step in walk.steps:
        clock.now = step.time(microseconds(clock.now), limit, last) / MICROSECONDS
        charges = [Charge("key", limit, step.cost(limit))]
        (shown,), (again,) = store.peek(charges), store.peek(charges)
        (last,) = store.take(charges)
        _must(shown == again == last, f"peek answers {shown}, then {again}, and take {last}")
    return bool(walk.steps)


def decides_like_none_once_expired(limit: Limit, walk: Walk) -> bool:
    """From `expires` on, forgetting a state makes no difference."""
    state, _ = walk.end(limit)
    if state is None:
        return False
    expired, cost = limit.expires(state), walk.cost(limit)
    for now in (expired, expired + _part(limit.window_us, walk), expired + 3 * limit.window_us):
        kept, kept_state = limit.decide(state, now, cost, None)
        fresh, fresh_state = limit.decide(None, now, cost, None)
        _must(kept == fresh, f"{now - expired} us after it expired, the state decides {kept}, None {fresh}")
        for later in (now, now + limit.window_us // 7, now + limit.window_us):
            kept, fresh = _seen(limit, kept_state, later), _seen(limit, fresh_state, later)
            _must(kept == fresh, f"{later - now} us after a hit on an expired state: {kept}, on None: {fresh}")
    return True


def refills_nothing_when_the_clock_steps_back(limit: Limit, walk: Walk) -> bool:
    """And locks nobody out for longer than if all had been taken just then."""
    state, now = walk.end(limit)
    before, cost = _seen(limit, state, now), walk.cost(limit)
    for back in (1, 1 + _part(limit.window_us, walk), 20 * limit.window_us):
        then = now - back
        left = _seen(limit, state, then).remaining
        _must(left <= before.remaining, f"{back} us back in time {left} units are left, {before.remaining} were")
        longest = _longest(limit, then) + delay_us(limit)
        decision, moved = limit.decide(state, then, cost, None)
        reset = _whole(decision.reset_after, "reset_after")
        _must(reset <= longest, f"{back} us back in time it takes {reset} us until all is back, not {longest}")
        if not decision.allowed and cost <= limit.most:
            wait = _whole(decision.retry_after, "retry_after")
            _must(wait <= longest, f"{back} us back in time cost {cost} has to wait {wait} us, not {longest}")
        _wait_is_true(limit, moved, then, cost, walk)
    return True


def restores_what_is_given_back_at_once(limit: Limit, walk: Walk) -> bool:
    """As if it had not been taken. Given back later, it frees no more than that, and nothing once all had come back."""
    state, now = walk.forward.end(limit)
    cost = walk.cost(limit)
    decision, taken = limit.decide(state, now, cost, None)
    if not decision.allowed:
        return False
    restored = limit.settle(taken, now, -cost, decision.at)
    for instant in (now, now + limit.window_us // 7, now + limit.window_us):
        as_was, given = _seen(limit, state, instant), _seen(limit, restored, instant)
        _must(given == as_was, f"cost {cost} given back at once; {instant - now} us later {given}, not {as_was}")
    back = _whole(decision.reset_after, "reset_after")  # from then on nothing of it is out
    for after in (0, _part(back, walk), back, back + limit.window_us):
        untaken, left = _seen(limit, state, now + after).remaining, _seen(limit, taken, now + after).remaining
        _, others = _all_taken(limit, taken, now + after)  # theirs is not given back
        freed = _seen(limit, limit.settle(others, now + after, -cost, decision.at), now + after).remaining
        most = max(cost, untaken - left) if after < back else 0
        _must(freed <= most, f"cost {cost} given back {after} us later frees {freed} units, not at most {most}")
    return True


def takes_in_settling_what_does_not_fit(limit: Limit, walk: Walk) -> bool:
    """And is owed it: the waits after it are true as well. Settling 0 changes nothing."""
    state, now = walk.forward.end(limit)
    before, delta = _seen(limit, state, now), walk.cost(limit)
    same = _seen(limit, limit.settle(state, now, 0, now), now)
    _must(same == before, f"settling 0 changes {before} to {same}")
    for more in (delta, 3 * limit.most):
        owing = limit.settle(state, now, more, now)
        left, most = _seen(limit, owing, now).remaining, max(0, before.remaining - more)
        _must(left <= most, f"{more} of {before.remaining} are taken, and {left} are left")
        _wait_is_true(limit, owing, now, 1, walk)
    return True


LAWS: Final[tuple[Law, ...]] = (  # the plain ones first: where they are broken, so are others
    is_pure,
    changes_nothing_for_cost_0,
    counts_what_it_admits_and_nothing_else,
    never_admits_more_than_the_most,
    refuses_until_retry_after_and_admits_at_it,
    admits_one_unit_more_at_next_after_and_not_before,
    is_whole_at_reset_after_and_not_before,
    peeks_what_the_next_hit_answers,
    decides_like_none_once_expired,
    refills_nothing_when_the_clock_steps_back,
    restores_what_is_given_back_at_once,
    takes_in_settling_what_does_not_fit,
)


def delay_us(limit: Limit) -> int:
    """The limit's own `max_delay`, microseconds; 0 if it has none."""
    return microseconds(getattr(limit, "max_delay", 0.0))


def _must(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads like assert, which python -O leaves out
    if not holds:
        raise AssertionError(otherwise)


def _seen(limit: Limit, state: State, now: int) -> Decision:
    """What is left, with nothing taken."""
    return limit.decide(state, now, 0, None)[0]


def _all_taken(limit: Limit, state: State, now: int) -> tuple[Decision, State]:
    """After all that is left was taken, in charges of what can pass at most."""
    last = _seen(limit, state, now)
    while last.remaining:
        cost, left = min(last.remaining, limit.most), last.remaining
        last, state = limit.decide(state, now, cost, _at_once(limit))
        _must(last.allowed and last.delay == 0.0, f"{left} units are left, and {cost} of them do not pass at once")
        _must(last.remaining < left, f"{cost} of {left} units are taken, and {last.remaining} are left")
    return last, state


def _longest(limit: Limit, now: int) -> int:
    """Microseconds until all is back, at most, when all was taken just now by charges that passed at once."""
    longest, state = _whole(_all_taken(limit, None, now)[0].reset_after, "reset_after"), None
    if not limit.pays_later:
        return longest
    for _ in range(2):  # with all there can be, and with nothing but what one charge may take ahead
        last = _seen(limit, state, now)
        while last.remaining > 1:
            last, state = limit.decide(state, now, min(last.remaining - 1, limit.most), _at_once(limit))
        last, state = limit.decide(state, now, limit.most, _at_once(limit))
        longest = max(longest, _whole(last.reset_after, "reset_after"))
        now += _whole(last.next_after, "next_after")
    return longest + _tick(limit)  # by which the second may have come late


def _at_once(limit: Limit) -> int | None:
    """The max_delay under which nothing is held back: None where nothing ever is."""
    return 0 if hasattr(limit, "max_delay") else None


def _part(time: int, walk: Walk) -> int:
    return time * walk.part // 100


def _whole(seconds: float, what: str) -> int:
    """A time of a decision, microseconds."""
    _must(0.0 <= seconds < math.inf, f"{what} is {seconds} s")
    return microseconds(seconds)


def _early(wait: int, limit: Limit, walk: Walk) -> list[int]:
    """Instants before the end of a wait: the last one, and some on the way."""
    last = wait - _tick(limit)
    return [early for early in {last, _part(wait, walk), wait // 2, 0} if 0 <= early <= last]


def _tick(limit: Limit) -> int:
    return getattr(limit, "tick_us", 1)


def _wait_is_true(limit: Limit, state: State, now: int, cost: int, walk: Walk) -> bool:
    """Whether this charge has to wait. If so, it has to wait for exactly as long as it is told."""
    decision, state = limit.decide(state, now, cost, None)
    if decision.allowed or cost > limit.most:
        return False
    wait = _whole(decision.retry_after, f"cost {cost}, the most is {limit.most}: retry_after")
    for early in _early(wait, limit, walk):
        asked, _ = limit.decide(state, now + early, cost, None)
        _must(not asked.allowed, f"retry_after is {wait} us, and cost {cost} passes after {early} us")
        told = early + _whole(asked.retry_after, "retry_after")
        _must(abs(told - wait) < _tick(limit), f"retry_after is {wait} us, and {told} us to who asks after {early} us")
    after, _ = limit.decide(state, now + wait, cost, None)
    _must(after.allowed, f"retry_after is {wait} us, and cost {cost} is refused then")
    return True


def _broken(law: Law, limit: Limit, walk: Walk) -> Exception | None:
    """How a law is broken: an algorithm that raises breaks it too."""
    try:
        law(limit, walk)
    except Exception as error:  # noqa: BLE001  # whatever it is, the caller names it
        return error
    return None


def _shortened(law: Law, limit: Limit, walk: Walk) -> Walk:
    """The walk without the steps that the law is broken without, too."""
    for index in reversed(range(len(walk.steps))):
        shorter = Walk(walk.steps[:index] + walk.steps[index + 1 :], walk.size, walk.part)
        if _broken(law, limit, shorter):
            walk = shorter
    return walk
