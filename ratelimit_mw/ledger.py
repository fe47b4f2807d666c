"""What of one request is corrected, word by word: one correction after the other, and of several words the last."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ratelimit_mw.corrections import BucketAccount, GateVerdict, PendingSettlement, settlements
from ratelimit_mw.limit import Bucket, Charge, bucket_of
from ratelimit_mw.response import Policy
from ratelimit_mw.stores.forks import fork_safe_lock

ActualOf = Callable[[Policy], int | None]

_lock: Final = fork_safe_lock()  # an app may say it from several threads, and a store may answer in one


class SettlementLog:
    """The accounts of one request. What to give back is known when the store has said what it took.

    So while a correction is under way a further word waits, and goes when that is done, if no other one came.
    """

    __slots__ = ("_accounts", "_in_flight", "_next")

    def __init__(self) -> None:
        self._accounts: dict[Bucket, BucketAccount] = {}
        self._in_flight = 0
        self._next: tuple[Sequence[GateVerdict], ActualOf, Any] | None = None

    def settle(self, gate_verdicts: Sequence[GateVerdict], actual_of: ActualOf, loop: Any) -> None:
        """See `RateLimitState.settle_each`. `gate_verdicts`: what was taken for the request by now."""
        with _lock:
            if self._in_flight:
                self._next = (gate_verdicts, actual_of, loop)
                return
            due = settlements(gate_verdicts, actual_of, self._accounts)
            self._in_flight = len(due)
        for one in due:
            one.gate.settle(one.source, one.charges, loop, partial(self._on_settled, one))

    def _on_settled(self, sent: PendingSettlement, settled: Sequence[Charge]) -> None:
        """What was taken by corrections that were sent, one for each; nothing where that is not known."""
        with _lock:
            for charge, own in zip(sent.charges, settled, strict=False):
                self._accounts[bucket_of(charge)].record_settlement(own)
            self._in_flight -= 1
            next_settlement = None if self._in_flight else self._next
            if next_settlement is not None:
                self._next = None
        if next_settlement is not None:
            self.settle(*next_settlement)
