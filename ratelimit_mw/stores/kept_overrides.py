"""The methods of a store that keeps overrides and switches for all processes of an app.

A store on a server or in a file has them. Its processes only read; operators write. See `rules.overrides`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

KEPT_CHANGES: Final = 1000
CHANGES_TIME: Final = 30 * 86_400  # seconds that a change is kept


class KeptOverrides(NamedTuple):
    """The set of overrides in a store.

    `version`: differs after each change; empty if there was none. `text`: the entries. `mac`: see `rules.overrides`.
    """

    version: str = ""
    text: bytes = b""
    mac: str = ""


@runtime_checkable
class OverrideKeeper(Protocol):
    """A store for threads that keeps overrides. All methods raise `StoreError` if the store gives no answer."""

    def read_overrides(self, known: str) -> KeptOverrides | None:
        """Return the set; None if its version is `known`, which one small read shows."""
        ...

    def write_overrides(self, known: str, kept: KeptOverrides, change: bytes) -> bool:
        """Replace the set and add a description of the change. Return False if the version is not `known`."""
        ...

    def read_changes(self) -> Sequence[bytes]:
        """Return the descriptions of changes, the latest first: at most `KEPT_CHANGES`."""
        ...


@runtime_checkable
class AsyncOverrideKeeper(Protocol):
    """The part of `OverrideKeeper` that an app under asyncio needs."""

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`."""
        ...
