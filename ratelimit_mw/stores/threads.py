"""A store for threads over a way to a server: who waits, and for how long."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.crew import Crew
from ratelimit_mw.stores.patience import LINGER, Patience
from ratelimit_mw.stores.scripts import Codec
from ratelimit_mw.stores.talk import Command, Steps, T, Talk, drive, settling_calls


class Link(Protocol):
    """The way to a server, or to a cluster."""

    slots: bool  # whether keys live in the slots of a cluster
    codec: Codec  # what it can read, where the server knows it

    def send(self, command: Command, patience: Patience) -> Any:
        """The reply. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def close(self) -> None:
        """Close what was opened here. It can be used again."""
        ...


class ThreadStore(Talk):
    """The verbs, for threads."""

    def __init__(self, link: Link, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, slots=link.slots, codec=link.codec)
        self._link = link
        self._crew = Crew()

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none."""
        return self._run(self._take(charges, commit=True))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        return self._run(self._take(charges, commit=False))

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """Correct what was taken: `cost` is signed, `at` comes from the decision. Answers what was taken by it.

        A correction that needs several calls may take `timeout` for each of them.
        """
        return self._run(self._settle(charges), each=len(settling_calls(charges)) > 1)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self._run(self._reset(charges))

    def close(self) -> None:
        """Close the connections that this store opened. It can be used again."""
        self._link.close()
        self._crew.close()

    def _run(self, steps: Steps[T], *, each: bool = False) -> T:
        """Run the steps within `timeout`; with `each`, every step has as long."""
        patience = Patience(self._timeout)
        ask = self._ask if self.slots else self._link.send
        return drive(steps, lambda step: ask(step, Patience(self._timeout) if each else patience))

    def _ask(self, step: Any, patience: Patience) -> Any:
        """The outcomes of steps that go side by side, or the reply to one command."""
        if isinstance(step, list):
            return self._crew.side_by_side([partial(self._alone, steps) for steps in step], patience)
        return self._link.send(step, patience)

    def _alone(self, steps: Steps[T]) -> T:
        """Steps that the request may not wait for to the end. What they take late they hear of, and give back."""
        return drive(steps, lambda command: self._link.send(command, Patience(LINGER)))
