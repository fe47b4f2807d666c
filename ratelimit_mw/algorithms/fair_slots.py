"""Fair shares of slots that several holders have in common. The Lua implementation is `stores/redis/fair_slots.lua`.

While the slots are all in use, a refused holder that has less than its share waits, for 1.5 seconds after each refusal.
While another holder waits, a holder may take slots up to its share: all slots, divided by the number of holders that
have slots or wait, rounded up. Holders that have more keep their slots until they release them. One that has no slot
may take free ones, whatever its cost. While twice as many holders as slots are known, no other waits, so that a flood
of names takes no memory: each share is one slot then anyway.

The entries of a state are the slots, with their ends, and a note of each holder. The name of a slot is followed by its
holder, in 53 bits. A note has the negative number of the holder as its name, and as its end the negative of the slots
that it has and of the time until which it waits. So notes never count as slots in use.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from ratelimit_mw.algorithms.slot_state import LAST, SlotState
from ratelimit_mw.core.limit import MAX_EXACT_INT, Decision, Limit

_TENTH: Final = 100_000  # microseconds: the unit of the time until which a holder waits
_WAITS: Final = 15  # tenths of a second; a request in a queue tries again after at most a second
_SLOTS: Final = 2**15  # above the slots of a holder, which are at most twice the largest quota; see `settle_fairly`
_BITS: Final = 53  # of a number that is exact in Lua
_MOST_NAMES: Final = 10_000  # slots in one settlement
_PERSON: Final = b"ratelimit_mw"


def number_of(holder: str) -> int:
    """Return the number of a holder, from 2 on: 53 bits of a hash. Two holders with one number have one share."""
    digest = blake2b(holder.encode("utf-8", "surrogatepass"), digest_size=8, person=_PERSON).digest()
    return max(2, int.from_bytes(digest, "big") >> 64 - _BITS)


class _View:
    """What a holder finds in a state.

    `held`, `note`: its slots, and its note. `share`: its share. `others_wait`: whether another holder waits. `notes`:
    those that time has changed, by holder, and those that a change adds; 0 drops a note. `has_room`: whether another
    holder may be noted.
    """

    def __init__(self, quota: int, holder: int, state: SlotState | None, now: int) -> None:
        self.state: Final = state or SlotState(None, ())
        self.used: Final = self.state.in_use(now)
        self.waits_until: Final = now // _TENTH + _WAITS
        first, end = (now // _TENTH + 1) * _SLOTS, (self.waits_until + 1) * _SLOTS  # notes of holders that wait
        # no holder waits longer than `_WAITS`, even if the clock stepped back
        no_more = [*self.state.between(-LAST, -end), *self.state.between(1 - first, -_SLOTS)]
        self.notes: Final = {-name: -number % _SLOTS for number, name in no_more}
        for _, slot in self.state.between(0, now):
            gone = slot % 2**_BITS
            self.notes[gone] = self._note(gone) - 1
        self.note: Final = self._note(holder)
        self.held: Final = self.note % _SLOTS
        waiting = self.state.count(1 - end, -first)
        self.others_wait: Final = waiting > (first <= self.note < end)
        known = self.state.count(-LAST, -1) - list(self.notes.values()).count(0)
        self.share: Final = -(-quota // (known + (not self.note)))
        self.has_room: Final = self.note > 0 or known < 2 * quota
        self.has_waiting: Final = waiting > 0

    def _note(self, holder: int) -> int:
        return self.notes.get(holder, -self.state.end(-holder))

    def changed(self, now: int, latest: int, held: Iterable[int] = (), released: Iterable[int] = ()) -> SlotState:
        """Return the state with these slots held until `latest`, or released, and with `notes`."""
        changes: list[tuple[int, int | None]] = [(slot, None) for _, slot in self.state.between(0, now)]
        changes += [(slot, latest) for _, slot in self.state.between(latest + 1, LAST)]
        changes += [(slot, latest) for slot in held]
        changes += [(slot, None) for slot in released]
        changes += [(-holder, -note or None) for holder, note in self.notes.items()]
        return SlotState(self.state, changes)


def decide_fairly(
    limit: Limit, holder: int, state: SlotState | None, now: int, cost: int, _: int | None
) -> tuple[Decision, SlotState | None]:
    """Return the decision of a concurrency limit with a holder, see `Limit.decide`.

    While another holder waits, its `limit` is the share. If the slots are all in use, it is the quota even then.
    """
    quota, retry, latest = limit.quota, limit.max_wait, now + limit.window_us
    view = _View(quota, holder, state, now)
    used, held, most = view.used, view.held, view.share if view.others_wait else quota
    allowed, retry_after, at, shown = True, 0.0, now, most
    if cost and used + cost > quota:
        allowed, shown, retry_after = False, quota, retry if cost <= quota else float("inf")
        if cost <= quota and held < view.share and view.has_room:
            view.notes[holder] = view.waits_until * _SLOTS + held
        waits = view.notes.get(holder, view.note)
        if waits != view.note or (state is not None and state.last[0] > latest):
            state = view.changed(now, latest)
    elif cost and held and held + cost > most:
        allowed, retry_after = False, retry
        if view.state.last[0] > latest:
            state = view.changed(now, latest)
    elif cost:
        at = _free_name(view.state, holder, now, cost)
        used, held = used + cost, held + cost
        view.notes[holder] = held
        state = view.changed(now, latest, _slots(holder, at, cost))
    remaining = max(0, min(quota - used, most - held))
    return Decision(allowed, shown, remaining, retry_after, retry, retry * (used > 0), 0.0, at), state


def settle_fairly(
    limit: Limit, holder: int, state: SlotState | None, now: int, delta: int, at: int
) -> SlotState | None:
    """Return the state after a settlement of a limit with a holder, see `Concurrency`."""
    view, latest = _View(limit.quota, holder, state, now), now + limit.window_us
    slots = _slots(holder, max(at, 0), min(abs(delta), _MOST_NAMES))
    current = [slot for slot in slots if view.used and view.state.end(slot) > now]
    if delta > 0 and at <= MAX_EXACT_INT // 2:
        held = set(current)
        lost = [slot for slot in slots if slot not in held][: max(0, 2 * limit.quota - view.used)]
        if not current and not lost:
            return state
        view.notes[holder] = view.note + len(lost)
        return view.changed(now, latest, [*current, *lost])
    if delta >= 0 or not current:
        return state
    if len(current) == view.used and not view.has_waiting:
        return None
    view.notes[holder] = view.note - len(current)
    return view.changed(now, latest, released=current)


def expires_fairly(state: SlotState) -> int:
    """See `Limit.expires`: the last end of a slot, or of the time for which a holder waits."""
    return max(state.last[0], -state.first[0] // _SLOTS * _TENTH)


def _slots(holder: int, first: int, count: int) -> list[int]:
    return [(name << _BITS) + holder for name in range(first, first + count)]


def _free_name(state: SlotState, holder: int, now: int, cost: int) -> int:
    """Return the first of `cost` consecutive names, from `now` on, that no slot of the holder has."""
    first = name = now
    while name < first + cost:
        name += 1
        if state.end((name - 1 << _BITS) + holder) > now:
            first = name
    return first
