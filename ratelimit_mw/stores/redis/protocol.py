"""The types that the modules of the Redis store share: a command, the errors of its reply, and the senders."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Address = tuple[str, int]  # host and port
Command = tuple[str | bytes | int, ...]


class RoutedCommand(NamedTuple):
    """A command and the address of its server."""

    address: Address
    command: Command
    asking: bool = False


SendTo = Callable[[RoutedCommand], Awaitable[Any]]
"""Sends a command to its server and returns the reply. In threads it blocks and never suspends."""


class RetryableReply(Exception):
    """A reply after which another command is sent."""


class NoScript(RetryableReply):
    """The server does not know the script, because it restarted, failed over, or flushed its scripts."""


class NoCodec(RetryableReply):
    """The server lacks cmsgpack or struct."""


class Redirected(RetryableReply):
    """Another node of the cluster has the slot. With `asking`, it has only this key, while the slot is moving."""

    def __init__(self, address: Address, *, asking: bool) -> None:
        super().__init__(address)
        self.address = address
        self.asking = asking


class Sender(Protocol):
    """Sends the commands of one request. In threads its methods block and never suspend."""

    async def send(self, command: Command) -> Any:
        """Return the reply. Raises `RetryableReply` or `StoreError`."""
        ...

    async def run_all(self, parts: "Sequence[Part[T]]") -> list[T | Exception]:
        """Run parts of the request concurrently. Return the outcome of each: its result or its error."""
        ...


Part = Callable[[Sender], Coroutine[Any, Any, T]]
"""A part of a request, with a sender of its own. It may continue after the request has stopped waiting."""
