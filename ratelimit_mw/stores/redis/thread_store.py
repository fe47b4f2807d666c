"""A Redis store for threads: runs commands and enforces deadlines."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores.redis.commands import Command, RedisCommands, Steps, T, drive, settling_calls
from ratelimit_mw.stores.redis.deadline import ORPHAN_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.scripts import Codec
from ratelimit_mw.stores.redis.worker_pool import WorkerPool


class Transport(Protocol):
    """Sends commands to a server or a cluster, for threads."""

    is_cluster: bool  # whether a call reaches the keys of one hash slot only
    codec: Codec  # to use if the server supports it

    def send(self, command: Command, deadline: Deadline) -> Any:
        """Return the reply. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def close(self) -> None:
        """Close the connections. The transport can be used again."""
        ...


class ThreadStore(RedisCommands):
    """A Redis store for threads, without layers."""

    def __init__(self, transport: Transport, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, is_cluster=transport.is_cluster, codec=transport.codec)
        self._transport = transport
        self._workers = WorkerPool()

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all limits if all admit, else none."""
        return self._run(self._take(charges, commit=True))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, without charging."""
        return self._run(self._take(charges, commit=False))

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """Correct charges: `cost` is signed, `at` comes from the decision. Returns the charges that this took.

        A correction that needs several calls may take `timeout` for each of them.
        """
        return self._run(self._settle(charges), each=len(settling_calls(charges)) > 1)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Delete the states of these buckets."""
        self._run(self._reset(charges))

    def close(self) -> None:
        """Close the connections that this store opened. The store can be used again."""
        self._transport.close()
        self._workers.close()

    def _run(self, steps: Steps[T], *, each: bool = False) -> T:
        """Run the steps within `timeout`; with `each`, within `timeout` per step."""
        deadline = Deadline(self._timeout)
        execute = self._run_step if self.is_cluster else self._transport.send
        return drive(steps, lambda step: execute(step, Deadline(self._timeout) if each else deadline))

    def _run_step(self, step: Any, deadline: Deadline) -> Any:
        """Return the outcomes of steps that run concurrently, or the reply to one command."""
        if isinstance(step, list):
            return self._workers.run_all([partial(self._run_alone, steps) for steps in step], deadline)
        return self._transport.send(step, deadline)

    def _run_alone(self, steps: Steps[T]) -> T:
        """Run steps to their end, even if the request stops waiting: a part that ends too late refunds its units."""
        return drive(steps, lambda command: self._transport.send(command, Deadline(ORPHAN_TIMEOUT)))
