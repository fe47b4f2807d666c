"""Leases: a process takes units of a hot limit ahead, and spends them without asking the store.

The stock of a bucket is never more than `lease` units, and none of it is spent `lease_time` seconds after it was taken:
then it goes back, and so it does when the store is closed. So in any window each process admits at most `lease` units
beyond the bound of the algorithm (taken before the window, spent in it), and withholds at most as many from others.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.verdict import Answer

_STOCKS: Final = 1_000  # buckets of which units are taken ahead, at most: leases are for few and hot ones

Flight = Future[BaseException | None]  # a lease on its way, and what went wrong: others wait rather than take one more


class _Stock:
    """What is left of the units of one bucket that were taken ahead."""

    __slots__ = ("at", "charge", "decision", "flight", "held", "later", "since", "units", "until")

    def __init__(self, charge: Charge, now: float) -> None:
        self.charge = charge
        self.units = 0
        self.held = 0  # spent by groups of which the store decides the rest: they may come back
        self.decision: Decision | None = None  # the last lease: how the bucket stood with it taken
        self.at = 0  # for giving back: when the oldest of these units was taken
        self.since, self.until = now, now + charge.lease_time  # in between they may be spent
        self.later = -math.inf  # no lease is asked for before that: the quota had no more
        self.flight: Flight | None = None

    def shown(self, units: int) -> Decision:
        """With so many units in stock. Times are those of the lease: too long rather than too small."""
        last = self.decision
        if last is None:
            raise RuntimeError("a stock that was never filled has nothing to show")
        left = min(last.limit, last.remaining + units)
        return Decision(True, last.limit, left, 0.0, last.next_after, last.reset_after, 0.0, self.at)

    def fill(self, units: int, decision: Decision, began: float) -> None:
        """A lease came. Where older units are left, all go back when these do, as if they were as old."""
        if not self.units:
            self.at, self.since, self.until = decision.at, began, began + self.charge.lease_time
        self.units += units
        self.decision = decision

    def emptied(self) -> Charge:
        """The correction that gives back all of it."""
        back = Charge(self.charge.key, self.charge.limit, -self.units, at=self.at)
        self.units = 0
        return back


class Errand:
    """One group of charges: what comes out of stocks, what the store is asked for, and what is taken ahead.

    `waits_for`: a lease on its way that may have room for the group; then nothing else is said.
    """

    __slots__ = ("ahead", "asked", "began", "charges", "decisions", "flights", "spent", "waits_for")

    def __init__(self, charges: Sequence[Charge], began: float) -> None:
        self.charges, self.began = charges, began
        self.decisions: list[Decision | None] = []  # None: the store is asked
        self.asked: list[Charge] = []
        self.spent: dict[int, _Stock] = {}  # by index
        self.ahead: list[Charge] = []
        self.flights: list[tuple[_Stock, Flight]] = []  # one for each of `ahead`
        self.waits_for: Flight | None = None


class Leases:
    """The stocks of a process. No I/O; time is an argument, in seconds. Several threads may call at once."""

    def __init__(self) -> None:
        self.due = math.inf  # when something is to go back
        self._stocks: dict[tuple[str, str], _Stock] = {}
        self._back: list[Charge] = []  # corrections that nobody made yet
        self._lock = lock()

    def spend(self, charges: Sequence[Charge], now: float) -> Answer | None:
        """The whole group out of stocks, if they have it all. Most groups end here; `start` is for the others."""
        spent: list[tuple[_Stock, int]] = []
        with self._lock:
            for charge in charges:
                cost = charge.cost
                stock = self._stocks.get((charge.key, charge.limit.bucket)) if _leased(charge) else None
                if stock is None or stock.units < cost or not stock.since <= now < stock.until:
                    for stock, cost in spent:
                        stock.units += cost
                    return None
                stock.units -= cost
                spent.append((stock, cost))
            return Answer([stock.shown(stock.units) for stock, _ in spent], "lease")

    def start(self, charges: Sequence[Charge], now: float, *, patient: bool) -> Errand:
        """What is to be done for a group; then `end` or `fail`. `patient`: it may wait for a lease on its way."""
        errand = Errand(charges, now)
        with self._lock:
            busy = [self._find(errand, charge, now) for charge in charges]
            if errand.asked:
                self._hold(errand, 1)
            flights = [flight for flight in busy if flight is not None]
        if patient and flights and len(flights) == len(errand.asked) and not errand.ahead:
            self._put_back(errand)
            errand.waits_for = flights[0]
        return errand

    def land(self, errand: Errand, leases: Sequence[Sequence[Decision]], now: float) -> None:
        """What was taken ahead; nothing where that failed."""
        with self._lock:
            for (stock, _), charge, decisions in zip(errand.flights, errand.ahead, leases, strict=True):
                for decision in decisions:
                    self._fill(stock, charge.cost, decision, errand.began, now)

    def end(self, errand: Errand, answer: Sequence[Decision]) -> Sequence[Decision]:
        """The decisions of the group, given those of what was asked."""
        pairs = zip(errand.asked, answer, strict=True)
        if any(not decision.allowed and charge.role != "shadow" for charge, decision in pairs):
            self._put_back(errand)
        elif errand.asked and errand.spent:
            with self._lock:
                self._hold(errand, -1)
        _release(errand, None)
        asked = iter(answer)
        decisions = [next(asked) if decision is None else decision for decision in errand.decisions]
        if not errand.asked:
            return Answer(decisions, "lease")
        return Answer(decisions, answer.source) if isinstance(answer, Answer) else decisions

    def fail(self, errand: Errand, error: BaseException) -> None:
        """The store did not answer."""
        self._put_back(errand)
        _release(errand, error)

    def overdue(self, now: float) -> list[Charge]:
        """The corrections that are due now."""
        with self._lock:
            for bucket, stock in list(self._stocks.items()):
                if not stock.since <= now < stock.until:  # also when the clock stepped back
                    self._retire(stock)
                    if stock.flight is None:
                        del self._stocks[bucket]
            self.due = min((stock.until for stock in self._stocks.values()), default=math.inf)
            back, self._back = self._back, []
        return back

    def all(self) -> list[Charge]:
        """The corrections that give back everything."""
        return self.overdue(math.inf)

    def forget(self, charges: Sequence[Charge]) -> None:
        """These buckets were reset: nothing was taken of them."""
        with self._lock:
            for charge in charges:
                self._stocks.pop((charge.key, charge.limit.bucket), None)

    def clear(self) -> None:
        """All buckets are others now."""
        with self._lock:
            self._stocks.clear()
            self._back.clear()

    def start_over(self) -> None:
        """As `clear`, in a child process: the stocks are its parent's, and who held the lock is not here."""
        self._lock = lock()
        self.clear()

    def _find(self, errand: Errand, charge: Charge, now: float) -> Flight | None:
        """Spend what is in stock, or have the store asked. The lease on its way, if there is one to wait for."""
        stock = self._stock(charge, now)
        if stock is not None and stock.units >= charge.cost:
            stock.units -= charge.cost
            errand.spent[len(errand.decisions)] = stock
            errand.decisions.append(stock.shown(stock.units))
            return None
        errand.decisions.append(None)
        errand.asked.append(charge)
        if stock is None:
            return None
        if stock.flight is not None:
            return stock.flight
        room = charge.lease - stock.units - stock.held
        if room > 0 and now >= stock.later:
            flight = stock.flight = Flight()
            flight.set_running_or_notify_cancel()  # from here on nobody who waits for it can cancel it
            errand.ahead.append(Charge(charge.key, charge.limit, room))
            errand.flights.append((stock, flight))
        return None

    def _stock(self, charge: Charge, now: float) -> _Stock | None:
        """The stock that a charge may spend; nothing in it is overdue."""
        if not _leased(charge):
            return None
        bucket = (charge.key, charge.limit.bucket)
        stock = self._stocks.get(bucket)
        if stock is None and len(self._stocks) < _STOCKS:
            stock = self._stocks[bucket] = _Stock(charge, now)
            self.due = min(self.due, stock.until)
        elif stock is not None and not stock.since <= now < stock.until:
            self._retire(stock)
        return stock

    def _retire(self, stock: _Stock) -> None:
        if stock.units:
            self._back.append(stock.emptied())
            self.due = -math.inf

    def _hold(self, errand: Errand, sign: int) -> None:
        for index, stock in errand.spent.items():
            stock.held += sign * errand.charges[index].cost

    def _put_back(self, errand: Errand) -> None:
        """What was spent goes back into the stocks: the group is not admitted."""
        with self._lock:
            self._hold(errand, -1)
            for index, stock in errand.spent.items():
                stock.units += errand.charges[index].cost
                errand.decisions[index] = stock.shown(stock.units)
        errand.spent = {}

    def _fill(self, stock: _Stock, units: int, decision: Decision, began: float, now: float) -> None:
        if not decision.allowed:
            stock.later = now + min(decision.retry_after, stock.charge.lease_time)
            return
        stock.fill(units, decision, began)
        if self._stocks.get((stock.charge.key, stock.charge.limit.bucket)) is stock:
            self.due = min(self.due, stock.until)
        else:
            self._retire(stock)  # the bucket was reset meanwhile


def _leased(charge: Charge) -> bool:
    return charge.lease >= charge.cost > 0 and charge.role == "limit"


def _release(errand: Errand, error: BaseException | None) -> None:
    """Who waited goes on."""
    for stock, flight in errand.flights:
        stock.flight = None
        flight.set_result(error)
