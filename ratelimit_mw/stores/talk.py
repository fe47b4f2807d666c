"""What the Redis stores say: keys, commands, and which command follows which reply.

Does no I/O, so threads and asyncio share it.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Literal, TypeVar

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import Charge, Decision, seconds
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.scripts import Codec, check_scripted, decisions, script, settle_arguments, take_arguments
from ratelimit_mw.ticks import microseconds

Command = tuple[str | bytes | int, ...]
T = TypeVar("T")
Steps = Generator[
    Command, Any, T
]  # yields commands; is sent each reply, or thrown its error; returns what was asked for

_FORMAT: Final = "1"  # of the states; the first part of every key
_TRIES: Final = 4  # EVALSHA calls for one group: each of the two codecs' scripts may be unknown at first


class NoScript(Exception):
    """The server does not know the script: it restarted, failed over, or was flushed."""


class NoCodec(Exception):
    """The server has no cmsgpack and struct."""


class Talk:
    """The part of a Redis store that does not depend on how commands are sent."""

    def __init__(self, prefix: str, timeout: float, deny_cache: float, clock: Callable[[], float] | None) -> None:
        if not isinstance(prefix, str):
            raise ConfigError(f"prefix: found {prefix!r}, allowed is a string")
        if not seconds("timeout", timeout):
            raise ConfigError("timeout: found 0, allowed is more than 0 seconds")
        seconds("deny_cache", deny_cache)
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: found {clock!r}, allowed is a callable that returns seconds")
        self._prefix = f"{prefix}{_FORMAT}:"
        self._timeout = timeout
        self._clock = clock
        self._codec: Codec = "packed"

    def _take(self, asked: Sequence[Charge], *, commit: bool) -> Steps[Sequence[Decision]]:
        group = Group(asked)
        charges, now = group.charges, self._now()
        if not charges:
            return []
        reply = yield from self._evaluate(
            "take", self._keys(charges), lambda codec: take_arguments(codec, now, charges, commit=commit)
        )
        return group.spread(decisions(reply, charges))

    def _settle(self, charges: Sequence[Charge]) -> Steps[None]:
        now = self._now()
        if charges:
            yield from self._evaluate(
                "settle", self._keys(charges), lambda codec: settle_arguments(codec, now, charges)
            )

    def _reset(self, charges: Sequence[Charge]) -> Steps[None]:
        if charges:
            yield ("UNLINK", *self._keys(charges))

    def _evaluate(
        self, driver: Literal["take", "settle"], keys: list[bytes], arguments: Callable[[Codec], bytes]
    ) -> Steps[object]:
        for _ in range(_TRIES):
            run = script(driver, self._codec)
            try:
                return (yield ("EVALSHA", run.sha, len(keys), *keys, arguments(self._codec)))
            except NoScript:
                yield ("SCRIPT LOAD", run.text)
            except NoCodec:
                self._codec = "text"
        raise StoreError("the server forgets the script as soon as it is loaded")

    def _keys(self, charges: Sequence[Charge]) -> list[bytes]:
        for charge in charges:
            check_scripted(charge.limit)
        keys = [f"{self._prefix}{charge.key}:{charge.limit.bucket}" for charge in charges]
        return [key.encode("utf-8", "surrogatepass") for key in keys]  # any text is a key

    def _now(self) -> int:
        """A told time in microseconds; 0 asks the server for its own."""
        return 0 if self._clock is None else max(1, microseconds(self._clock()))
