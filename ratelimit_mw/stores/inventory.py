"""The methods of a store that the admin commands need. They list its keys, and the clients that were refused.

A store on a server or in a file has these methods in addition to those of `Store`. `ratelimit_mw.admin` looks them up
by name. A store without them still limits requests, but `keys`, `top` and `tail` report that it does not support them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from ratelimit_mw.core.limit import Limit

KEPT_SECONDS: Final = 3600  # how long a store keeps refusals
KEPT_CLIENTS: Final = 1000  # clients that a store keeps for each minute: those with the most refusals
KEPT_REFUSALS: Final = 10_000  # about how many of the latest refusals a store keeps
MAX_METHOD: Final = 20  # characters
MAX_PATH: Final = 200  # characters


class KeyPage(Struct, frozen=True):
    """Some keys of a store.

    `keys`: each is a `Charge.key`, a colon and a bucket id (`Limit.bucket`), such as
    `{ip=192.0.2.7}:login:5/60s_using_gcra`. The braces are part of the key. `seen`: the share of the store that was
    read so far, from 0.0 to 1.0; 1.0 on the last page only.
    """

    keys: Sequence[str]
    seen: float


class Refusal(Struct, frozen=True):
    """A refused request. `key`: the `Charge.key` that refused it. `limit`: its canonical notation.

    `at`: seconds since 1970, by the clock of the process that refused it. `retry_after`: seconds; infinite for never.
    `method`, `path`: of the request, at most `MAX_PATH` characters; empty if unknown.
    """

    key: str
    limit: str
    at: float
    retry_after: float
    method: str = ""
    path: str = ""


class NumberedRefusal(Struct, frozen=True):
    """A refusal as the store keeps it. `number`: text that identifies its place among the others."""

    number: str
    refusal: Refusal


@runtime_checkable
class Inventory(Protocol):
    """A store for threads that operators can query. All methods raise `StoreError` if the store gives no answer.

    No method waits between its calls to the store, so the caller has to pace them.
    """

    def list_keys(self) -> Iterator[KeyPage]:
        """Yield the keys of all buckets, page by page; each step is one short call of about 1,000 keys.

        A key that exists during the whole listing is on one page or on two. The pages may also contain keys of other
        programs, and keys of the store that are not buckets.
        """
        ...

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """Add to the numbers of refusals per `Charge.key` in the present minute, and append the latest refusals.

        Keeps both for an hour, `KEPT_CLIENTS` keys for each minute and about `KEPT_REFUSALS` refusals.
        """
        ...

    def most_refused(self, since: float) -> Mapping[str, int]:
        """Return the numbers of refusals per `Charge.key` since an instant, in seconds since 1970.

        The minute of that instant counts as a whole.
        """
        ...

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        """Return up to `most` refusals, oldest first: those after number `after`, or the latest ones if it is None."""
        ...


@runtime_checkable
class RefusalFinder(Protocol):
    """An `Inventory` that finds full buckets faster than a `peek` of all would. Optional."""

    def list_refusing(self, limit_of: Callable[[str], Limit | None]) -> Iterator[KeyPage]:
        """Yield pages like `list_keys`, but omit most keys whose buckets would admit one unit.

        `limit_of`: returns the limit of a key by its end, `rule:bucket-id`; None for other keys.
        """
        ...


@runtime_checkable
class AsyncInventory(Protocol):
    """The part of `Inventory` that an app under asyncio needs."""

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        ...
