"""Laws that every algorithm obeys, checked on random walks: `check_laws(MyLimit(100, 60))`.

Each law is a function of a limit and a walk. It raises `AssertionError` if the limit breaks the law, and returns
whether the walk reached a case that the law is about. Laws need only this package. They can be called one by one, with
limits and walks from Hypothesis or any other source.

Times are checked to the microsecond. A limit that rounds its waits up to a coarser unit declares this unit in an
attribute `tick_us`, in microseconds. It may refuse too long by less than one such unit.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Final

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, Limit, State, microseconds
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.walks import START, Walk, random_walk

Law = Callable[[Limit, Walk], bool]


def check_laws(limit: Limit, *, walks: int = 200, seed: int = 0) -> None:
    """Check all `LAWS` for `limit` on random walks, which are the same for the same `seed`.

    Raises an `AssertionError` that names the broken law, the limit, the seed and the shortest walk found that breaks
    it. Call `the_law(limit, walk)` to reproduce it.
    """
    _check(
        bool(limit.algorithm) and ALGORITHMS.get(limit.algorithm, type(limit)) is type(limit),
        f"{type(limit).__name__}.algorithm is {limit.algorithm!r}, expected a name of its own: it is part of the "
        "bucket's id, and two algorithms must not share states",
    )
    random = Random(seed)  # noqa: S311  # not used for secrets
    random_walks = [random_walk(random) for _ in range(walks)]
    for law in LAWS:
        for number, walk in enumerate(random_walks):
            if _violation(law, limit, walk):
                shortest = _shrink(law, limit, walk)
                error = _violation(law, limit, shortest)
                reason = str(error) if isinstance(error, AssertionError) else repr(error)
                raise AssertionError(
                    f"{law.__name__}: {reason}\nlimit: {limit!r}\nwalk {number} of seed {seed}, shortened: {shortest!r}"
                ) from error


def is_pure(limit: Limit, walk: Walk) -> bool:
    """Check that a state always decides the same, whatever was derived from it, because a store may repeat a call."""
    points = list(walk.points(limit))
    for before, now, cost, decision, after in reversed(points):
        for delta in (1, -1):
            limit.settle(before, now + 1, delta, now)
        limit.decide(before, now + limit.window_us, 1, None)
        limit.decide(before, now, limit.most, None)
        again, state = limit.decide(before, now, cost, None)
        _check(again == decision, f"cost {cost} leads to {decision}, and to {again} the second time")
        for instant in (now, now + _part(limit.window_us, walk)):
            first, second = _peek(limit, after, instant), _peek(limit, state, instant)
            _check(first == second, f"the same state and charge lead to {first}, and to {second} the second time")
    return bool(points)


def changes_nothing_for_cost_0(limit: Limit, walk: Walk) -> bool:
    """Check that cost 0 is admitted and returns the same state object, even if it is None or later than `now`."""
    state, now = walk.end(limit)
    for stored in (None, state):
        for instant in (now, now - 10 * limit.window_us, now + limit.window_us // 3):
            decision, after = limit.decide(stored, instant, 0, None)
            _check(after is stored, f"cost 0 changes {stored} to {after}")
            admitted = (decision.allowed, decision.retry_after, decision.delay)
            _check(admitted == (True, 0.0, 0.0), f"cost 0 leads to {decision}")
    return True


def counts_what_it_admits_and_nothing_else(limit: Limit, walk: Walk) -> bool:
    """Check that a decision agrees with the state to store, and that a refusal takes nothing."""
    for before, now, cost, decision, after in walk.points(limit):
        seen, left = _peek(limit, before, now), _peek(limit, after, now)
        decided = (decision.limit, decision.remaining, decision.next_after, decision.reset_after)
        stored = (left.limit, left.remaining, left.next_after, left.reset_after)
        _check(decided == stored, f"cost {cost}: the decision shows {decided}, the state to keep {stored}")
        if decision.allowed:
            _check(
                decision.retry_after == 0.0, f"cost {cost} is admitted, with a retry_after of {decision.retry_after}"
            )
            most = max(0, seen.remaining - cost)
            _check(left.remaining <= most, f"cost {cost} of {seen.remaining} leaves {left.remaining}")
        else:
            _check(decision.retry_after > 0.0, f"cost {cost} is refused, with a retry_after of {decision.retry_after}")
            _check(left == seen, f"cost {cost} is refused and changes {seen} to {left}")
        delay = microseconds(decision.delay)
        longest = limit.effective_max_delay_us if decision.allowed else 0
        _check(0 <= delay <= longest, f"cost {cost} has a delay of {delay} us")
    for before, now, cost, decision, after in walk.forward.points(limit):
        instant = now + _part(limit.window_us, walk)
        same = decision.allowed or _peek(limit, before, instant) == _peek(limit, after, instant)
        _check(same, f"cost {cost} is refused, but has an effect {instant - now} us later")
    return bool(walk.steps)


def never_admits_more_than_the_most(limit: Limit, walk: Walk) -> bool:
    """Check that a cost over `limit.most` is always refused, with an infinite `retry_after`."""
    state, now = walk.end(limit)
    for stored in (None, state):
        for cost in (limit.most + 1, 10 * limit.most):
            for instant in (now, now + _part(limit.window_us, walk), now + 100 * limit.window_us):
                decision, _ = limit.decide(stored, instant, cost, None)
                never = not decision.allowed and math.isinf(decision.retry_after)
                _check(never or cost <= limit.most, f"the most is {limit.most}, but cost {cost} leads to {decision}")
    return True


def refuses_until_retry_after_and_admits_at_it(limit: Limit, walk: Walk) -> bool:
    """Check that a client that waits for `retry_after` passes, and that a client that waits for less does not."""
    state, now = walk.forward.end(limit)
    return _check_wait(limit, state, now, walk.cost(limit), walk)


def admits_one_unit_more_at_next_after_and_not_before(limit: Limit, walk: Walk) -> bool:
    """Check that `remaining` units pass without a delay, and one more unit only at `next_after`.

    If the limit `borrows`, a single larger charge may pass too.
    """
    state, now = walk.forward.end(limit)
    current = _peek(limit, state, now)
    _check(0 <= current.remaining <= current.limit, f"remaining is {current.remaining} of {current.limit}")
    more, _ = limit.decide(state, now, current.remaining + 1, _no_delay(limit))
    _check(not more.allowed or limit.borrows, f"{current.remaining} units are left, but {current.remaining + 1} pass")
    after_take, state = _take_all(limit, state, now)
    more, _ = limit.decide(state, now, 1, _no_delay(limit))
    _check(not more.allowed, f"all {current.remaining} remaining units are taken, but one more passes")
    _check(after_take.remaining == 0, f"all {current.remaining} units were taken, but {after_take.remaining} are left")
    _check(
        after_take.next_after == current.next_after,
        f"next_after is {current.next_after}, but {after_take.next_after} after all remaining units are taken",
    )
    wait = _finite_us(current.next_after, "next_after")
    _check(wait > 0, "next_after is 0")
    for early in _times_before(wait, limit, walk):
        units = _peek(limit, state, now + early).remaining
        _check(units == 0, f"next_after is {wait} us, but {units} units are available after {early} us")
    units = _peek(limit, state, now + wait).remaining
    _check(units >= 1, f"next_after is {wait} us, but no unit is available then")
    return True


def is_whole_at_reset_after_and_not_before(limit: Limit, walk: Walk) -> bool:
    """Check that the whole quota is available at `reset_after`, and less before."""
    state, now = walk.forward.end(limit)
    current = _peek(limit, state, now)
    wait = _finite_us(current.reset_after, "reset_after")
    whole = _peek(limit, state, now + wait)
    _check(whole.remaining == whole.limit, f"at reset_after, {whole.remaining} of {whole.limit} are left")
    _check(whole.reset_after == 0.0, f"at reset_after, {whole.reset_after} s of it remain")
    for early in _times_before(wait, limit, walk):
        left = _peek(limit, state, now + early).remaining
        _check(left < current.limit, f"reset_after is {wait} us, but all units are available after {early} us")
    return wait > 0


def peeks_what_the_next_hit_answers(limit: Limit, walk: Walk) -> bool:
    """Check that `peek` of a store returns the same as the `take` that follows."""
    clock, last = Clock(START / MICROSECONDS), None
    store = MemoryStore(clock=clock)
    for step in walk.steps:
        clock.now = step.time(microseconds(clock.now), limit, last) / MICROSECONDS
        charges = [Charge("key", limit, step.cost(limit))]
        (first,), (again,) = store.peek(charges), store.peek(charges)
        (last,) = store.take(charges)
        _check(first == again == last, f"peek returns {first}, then {again}, and take returns {last}")
    return bool(walk.steps)


def decides_like_none_once_expired(limit: Limit, walk: Walk) -> bool:
    """Check that from `expires` on, a state decides like None, so that a store may drop it."""
    state, _ = walk.end(limit)
    if state is None:
        return False
    expired, cost = limit.expires(state), walk.cost(limit)
    for now in (expired, expired + _part(limit.window_us, walk), expired + 3 * limit.window_us):
        stored, stored_state = limit.decide(state, now, cost, None)
        fresh, fresh_state = limit.decide(None, now, cost, None)
        _check(stored == fresh, f"{now - expired} us after it expired, the state decides {stored}, but None {fresh}")
        for instant in (now, now + limit.window_us // 7, now + limit.window_us):
            stored, fresh = _peek(limit, stored_state, instant), _peek(limit, fresh_state, instant)
            _check(
                stored == fresh, f"{instant - now} us after a charge on an expired state: {stored}, on None: {fresh}"
            )
    return True


def refills_nothing_when_the_clock_steps_back(limit: Limit, walk: Walk) -> bool:
    """Check that a clock step back refills nothing, and causes no longer wait than if all units were just taken.

    Or, if this is longer, than `limit.max_wait`.
    """
    state, now = walk.end(limit)
    before, cost = _peek(limit, state, now), walk.cost(limit)
    for back in (1, 1 + _part(limit.window_us, walk), 20 * limit.window_us):
        then = now - back
        left = _peek(limit, state, then).remaining
        _check(left <= before.remaining, f"{back} us back in time, {left} units are left instead of {before.remaining}")
        longest = max(_max_reset_us(limit, then), microseconds(limit.max_wait)) + limit.effective_max_delay_us
        decision, next_state = limit.decide(state, then, cost, None)
        reset = _finite_us(decision.reset_after, "reset_after")
        _check(reset <= longest, f"{back} us back in time, reset_after is {reset} us, more than {longest}")
        if not decision.allowed and cost <= limit.most:
            wait = _finite_us(decision.retry_after, "retry_after")
            _check(wait <= longest, f"{back} us back in time, cost {cost} waits {wait} us, more than {longest}")
        _check_wait(limit, next_state, then, cost, walk)
    return True


def restores_what_is_given_back_at_once(limit: Limit, walk: Walk) -> bool:
    """Check that a refund at once undoes the charge. A later one frees no more, and nothing after `reset_after`."""
    state, now = walk.forward.end(limit)
    cost = walk.cost(limit)
    decision, after_take = limit.decide(state, now, cost, None)
    if not decision.allowed:
        return False
    restored = limit.settle(after_take, now, -cost, decision.at)
    for instant in (now, now + limit.window_us // 7, now + limit.window_us):
        expected, actual = _peek(limit, state, instant), _peek(limit, restored, instant)
        _check(actual == expected, f"cost {cost} refunded at once; {instant - now} us later {actual}, not {expected}")
    back = _finite_us(decision.reset_after, "reset_after")  # from then on the charge has no effect
    for after in (0, _part(back, walk), back, back + limit.window_us):
        untaken, left = _peek(limit, state, now + after).remaining, _peek(limit, after_take, now + after).remaining
        _, others = _take_all(limit, after_take, now + after)  # charges of other requests, which are not refunded
        freed = _peek(limit, limit.settle(others, now + after, -cost, decision.at), now + after).remaining
        most = max(cost, untaken - left) if after < back else 0
        _check(freed <= most, f"cost {cost} refunded {after} us later frees {freed} units, more than {most}")
    return True


def takes_in_settling_what_does_not_fit(limit: Limit, walk: Walk) -> bool:
    """Check that settling may exceed the quota, with exact waits after it, and that settling 0 changes nothing."""
    state, now = walk.forward.end(limit)
    before, delta = _peek(limit, state, now), walk.cost(limit)
    same = _peek(limit, limit.settle(state, now, 0, now), now)
    _check(same == before, f"settling 0 changes {before} to {same}")
    for more in (delta, 3 * limit.most):
        owing = limit.settle(state, now, more, now)
        left, most = _peek(limit, owing, now).remaining, max(0, before.remaining - more)
        _check(left <= most, f"{more} of {before.remaining} units are settled, but {left} are left")
        _check_wait(limit, owing, now, 1, walk)
    return True


LAWS: Final[tuple[Law, ...]] = (  # simple laws first, because if they are broken, others are, too
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


def _check(condition: bool, message: str) -> None:  # noqa: FBT001  # like assert, which python -O removes
    if not condition:
        raise AssertionError(message)


def _peek(limit: Limit, state: State, now: int) -> Decision:
    """Return the decision on a charge of cost 0."""
    return limit.decide(state, now, 0, None)[0]


def _take_all(limit: Limit, state: State, now: int) -> tuple[Decision, State]:
    """Take all that is left, in the largest possible charges. Return the last decision and state."""
    last = _peek(limit, state, now)
    while last.remaining:
        cost, left = min(last.remaining, limit.most), last.remaining
        last, state = limit.decide(state, now, cost, _no_delay(limit))
        _check(last.allowed and last.delay == 0.0, f"{left} units are left, but {cost} of them do not pass at once")
        _check(last.remaining < left, f"{cost} of {left} units are taken, but {last.remaining} are left")
    return last, state


def _max_reset_us(limit: Limit, now: int) -> int:
    """Return the longest time, in microseconds, until all is available, after all was taken without a delay."""
    longest, state = _finite_us(_take_all(limit, None, now)[0].reset_after, "reset_after"), None
    if not limit.borrows:
        return longest
    for _ in range(2):  # from all units, then from a single unit, which a charge may overdraw
        last = _peek(limit, state, now)
        while last.remaining > 1:
            last, state = limit.decide(state, now, min(last.remaining - 1, limit.most), _no_delay(limit))
        last, state = limit.decide(state, now, limit.most, _no_delay(limit))
        longest = max(longest, _finite_us(last.reset_after, "reset_after"))
        now += _finite_us(last.next_after, "next_after")
    return longest + _tick_us(limit)  # the second charge may be late by a tick


def _no_delay(limit: Limit) -> int | None:
    """Return the `max_delay` for which nothing is delayed; None if the limit never delays."""
    return 0 if limit.can_delay else None


def _part(time: int, walk: Walk) -> int:
    return time * walk.part // 100


def _finite_us(seconds: float, what: str) -> int:
    """Convert a time of a decision to microseconds and check that it is finite."""
    _check(0.0 <= seconds < math.inf, f"{what} is {seconds} s")
    return microseconds(seconds)


def _times_before(wait: int, limit: Limit, walk: Walk) -> list[int]:
    """Return instants before the end of a wait: the last one, and some earlier ones."""
    last = wait - _tick_us(limit)
    return [early for early in {last, _part(wait, walk), wait // 2, 0} if 0 <= early <= last]


def _tick_us(limit: Limit) -> int:
    return getattr(limit, "tick_us", 1)


def _check_wait(limit: Limit, state: State, now: int, cost: int, walk: Walk) -> bool:
    """Check that the `retry_after` of a refused charge is exact. Return whether the charge has to wait."""
    decision, state = limit.decide(state, now, cost, None)
    if decision.allowed or cost > limit.most:
        return False
    wait = _finite_us(decision.retry_after, f"cost {cost}, the most is {limit.most}: retry_after")
    for early in _times_before(wait, limit, walk):
        retry, _ = limit.decide(state, now + early, cost, None)
        _check(not retry.allowed, f"retry_after is {wait} us, but cost {cost} passes after {early} us")
        total_wait = early + _finite_us(retry.retry_after, "retry_after")
        _check(
            abs(total_wait - wait) < _tick_us(limit),
            f"retry_after is {wait} us, but {total_wait} us in total after a request at {early} us",
        )
    after, _ = limit.decide(state, now + wait, cost, None)
    _check(after.allowed, f"retry_after is {wait} us, but cost {cost} is refused then")
    return True


def _violation(law: Law, limit: Limit, walk: Walk) -> Exception | None:
    """Return the error with which a limit breaks a law, or None. Any exception of the algorithm counts."""
    try:
        law(limit, walk)
    except Exception as error:  # noqa: BLE001  # the caller reports it
        return error
    return None


def _shrink(law: Law, limit: Limit, walk: Walk) -> Walk:
    """Return the walk without the steps that are not needed to break the law."""
    for index in reversed(range(len(walk.steps))):
        shorter = Walk(walk.steps[:index] + walk.steps[index + 1 :], walk.size, walk.part)
        if _violation(law, limit, shorter):
            walk = shorter
    return walk
