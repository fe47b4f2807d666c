"""An AsyncStore as a Store, so that one test is for both."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ratelimit_mw import Charge, Decision
from ratelimit_mw.stores import AsyncStore, Store


class Blocking:
    """Each verb runs the loop until the answer is there."""

    def __init__(self, store: AsyncStore, runner: asyncio.Runner) -> None:
        self._store, self._run = store, runner.run

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self._run(self._store.atake(charges))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self._run(self._store.apeek(charges))

    def settle(self, charges: Sequence[Charge]) -> None:
        self._run(self._store.asettle(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        self._run(self._store.areset(charges))

    def close(self) -> None:
        self._run(self._store.aclose())


@contextmanager
def blocking(store: AsyncStore) -> Iterator[Store]:
    """The store with a loop of its own, closed at the end."""
    with asyncio.Runner() as runner:
        try:
            yield Blocking(store, runner)
        finally:
            runner.run(store.aclose())
