"""What of one request is corrected, word by word: one correction after the other, and of several words the last."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ratelimit_mw.corrections import Account, Step, Taken, corrections
from ratelimit_mw.limit import Bucket, Charge, bucket_of
from ratelimit_mw.response import Policy
from ratelimit_mw.stores.forks import lock

ActualOf = Callable[[Policy], int | None]

_lock: Final = lock()  # an app may say it from several threads, and a store may answer in one


class Ledger:
    """The accounts of one request. What to give back is known when the store has said what it took.

    So while a correction is under way a further word waits, and goes when that is done, if no other one came.
    """

    __slots__ = ("_accounts", "_next", "_under_way")

    def __init__(self) -> None:
        self._accounts: dict[Bucket, Account] = {}
        self._under_way = 0
        self._next: tuple[Sequence[Step], ActualOf, Any] | None = None

    def correct(self, steps: Sequence[Step], actual_of: ActualOf, loop: Any) -> None:
        """See `Outcome.correct`. `steps`: what was taken for the request by now."""
        with _lock:
            if self._under_way:
                self._next = (steps, actual_of, loop)
                return
            due = corrections(steps, actual_of, self._accounts)
            self._under_way = len(due)
        for one in due:
            one.gate.correct(one.source, one.charges, loop, partial(self._told, one))

    def _told(self, sent: Taken, taken: Sequence[Charge]) -> None:
        """What was taken by corrections that were sent, one for each; nothing where that is not known."""
        with _lock:
            for charge, own in zip(sent.charges, taken, strict=False):
                self._accounts[bucket_of(charge)].took(own)
            self._under_way -= 1
            following = None if self._under_way else self._next
            if following is not None:
                self._next = None
        if following is not None:
            self.correct(*following)
