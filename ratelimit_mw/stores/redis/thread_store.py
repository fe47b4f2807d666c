"""A store for threads over a way to a server: who waits, and for how long."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores.redis.commands import Command, RedisCommands, Steps, T, drive, settling_calls
from ratelimit_mw.stores.redis.deadline import ORPHAN_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.scripts import Codec
from ratelimit_mw.stores.redis.worker_pool import WorkerPool


class Transport(Protocol):
    """The way to a server, or to a cluster."""

    is_cluster: bool  # whether keys live in the slots of a cluster
    codec: Codec  # what it can read, where the server knows it

    def send(self, command: Command, deadline: Deadline) -> Any:
        """The reply. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def close(self) -> None:
        """Close what was opened here. It can be used again."""
        ...


class ThreadStore(RedisCommands):
    """The verbs, for threads."""

    def __init__(self, transport: Transport, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, is_cluster=transport.is_cluster, codec=transport.codec)
        self._transport = transport
        self._workers = WorkerPool()

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
        self._transport.close()
        self._workers.close()

    def _run(self, steps: Steps[T], *, each: bool = False) -> T:
        """Run the steps within `timeout`; with `each`, every step has as long."""
        deadline = Deadline(self._timeout)
        execute = self._run_step if self.is_cluster else self._transport.send
        return drive(steps, lambda step: execute(step, Deadline(self._timeout) if each else deadline))

    def _run_step(self, step: Any, deadline: Deadline) -> Any:
        """The outcomes of steps that go side by side, or the reply to one command."""
        if isinstance(step, list):
            return self._workers.run_all([partial(self._run_alone, steps) for steps in step], deadline)
        return self._transport.send(step, deadline)

    def _run_alone(self, steps: Steps[T]) -> T:
        """Steps that the request may not wait for to the end. What they take late they hear of, and give back."""
        return drive(steps, lambda command: self._transport.send(command, Deadline(ORPHAN_TIMEOUT)))
