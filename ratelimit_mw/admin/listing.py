"""Lists the buckets of a store, without keeping its server busy."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from ratelimit_mw.admin.buckets import PER_CALL, Bucket, look
from ratelimit_mw.admin.target import Target
from ratelimit_mw.algorithms.notation import limit_of_bucket
from ratelimit_mw.algorithms.takeover import PREFIX
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.identity import rule_spellings
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.contract import declared
from ratelimit_mw.stores.group import stored_bucket
from ratelimit_mw.stores.inventory import Inventory, KeyPage, RefusalFinder

_MAX_RULES: Final = 1000  # names that are kept; clients choose none, but other programs may write keys
_PAUSE: Final = 4.0  # times the duration of a call, so that the server has four fifths of its time for the app

T = TypeVar("T")


class Listing:
    """The buckets of a store, read page by page while it is iterated.

    `limited`: only those that would refuse a request of one unit. `key`, `rule`: only those of this identity, and of
    this rule. `seen`: the share of the store's keys that were read so far. `read`: the number of keys that were read so
    far. `on_progress`: called after each page. `unread`: keys whose limit is unknown,
    because it is not in the settings, and its bucket id does not describe it. `rules`: with `rule`, the names of rules
    in the keys of this identity.
    """

    def __init__(
        self, target: Target, store: Store, *, limited: bool = False, key: str | None = None, rule: str | None = None
    ) -> None:
        self.seen = 0.0
        self.unread = 0
        self.read = 0
        self.on_progress: Callable[[], object] = lambda: None
        self.rules: Final[set[str]] = set()
        self._store: Final = store
        self._limited: Final = limited
        self._key: Final = key
        self._rule: Final = rule
        self._known: Final = known_limits(target)
        self._pace: Final = Pace()

    def __iter__(self) -> Iterator[Bucket]:
        """Yield each bucket once. Raises `StoreError` if the store gives no answer."""
        yielded: set[int] = set()  # hashes of keys, because a server may list a key twice
        for page, charges in self._charges_by_page():
            before, part = self.seen, page.seen - self.seen
            for start in range(0, len(charges), PER_CALL):
                some = charges[start : start + PER_CALL]
                buckets = self._pace(partial(look, self._store, some, limited=self._limited))
                for number, bucket in enumerate(buckets, 1):
                    self.seen = before + part * (start + len(some) * number / len(buckets)) / len(charges)
                    name = hash((bucket.key, bucket.rule, bucket.limit))
                    if name not in yielded:
                        yielded.add(name)
                        yield bucket
            self.seen = page.seen
            self.read += len(page.keys)
            self.on_progress()

    def charges(self) -> list[Charge]:
        """Return a charge of one unit to each of the buckets. Raises `StoreError` if the store gives no answer."""
        found: dict[tuple[str, str], Charge] = {}  # a server may list a key twice
        for _, charges in self._charges_by_page():
            found.update((stored_bucket(charge), charge) for charge in charges)
        return list(found.values())

    def forget(self) -> int:
        """Forget each bucket, page by page, and return the number of those in which something was counted."""
        forgotten = 0
        for page, charges in self._charges_by_page():
            for start in range(0, len(charges), PER_CALL):
                some = charges[start : start + PER_CALL]
                forgotten += sum(bucket.exists for bucket in self._pace(partial(look, self._store, some)))
                self._pace(partial(self._store.reset, some))
            self.seen = page.seen
            self.read += len(page.keys)
            self.on_progress()
        return forgotten

    def _charges_by_page(self) -> Iterator[tuple[KeyPage, list[Charge]]]:
        pages = iter(self._pages())
        while (page := self._pace(partial(next, pages, None))) is not None:
            yield page, [charge for key in page.keys if (charge := self._charge(key)) is not None]

    def _pages(self) -> Iterator[KeyPage]:
        inventory = inventory_of(self._store)
        if self._limited and isinstance(inventory, RefusalFinder):
            return inventory.list_refusing(self._limit_of)
        return inventory.list_keys()

    def _charge(self, key: str) -> Charge | None:
        """Return a charge of one unit to the bucket of a store's key; None for a key that is not listed."""
        tag, closed, end = key.rpartition("}:")
        if not (closed and tag.startswith("{")) or (self._key is not None and tag[1:] != self._key):
            return None
        if self._rule is not None:
            rule = end.partition(":")[0]
            if len(self.rules) < _MAX_RULES:
                self.rules.add(rule)
            if self._rule not in rule_spellings(rule):
                return None
        limit = self._limit_of(end)
        if limit is None:
            bucket = end.partition(":")[2]
            self.unread += "using_" in bucket or bucket.startswith(PREFIX)  # `smooth` has nothing before `using_`
            return None
        return Charge(f"{tag}}}:{end.partition(':')[0]}", limit)

    def _limit_of(self, end: str) -> Limit | None:
        """Return the limit of a key by its end, `rule:bucket-id`; None if the key is not that of a bucket."""
        rule, colon, bucket = end.partition(":")
        return (self._known.get((rule, bucket)) or limit_of_bucket(bucket)) if rule and colon else None


class Pace:
    """Calls a store, and pauses after each call for up to four times as long as it kept the server busy.

    The server is taken to be busy for the duration of the call, less the time that this thread spent on encoding keys
    and decoding the reply. Other work between calls counts as a pause.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
        own_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._own_time: Final = own_time
        self._next = 0.0

    def __call__(self, call: Callable[[], T]) -> T:
        """Return the result of a call of the store."""
        if (wait := self._next - self._clock()) > 0:
            self._sleep(wait)
        began, own = self._clock(), self._own_time()
        result = call()
        ended = self._clock()
        self._next = ended + _PAUSE * max(0.0, ended - began - (self._own_time() - own))
        return result


def known_limits(target: Target) -> Mapping[tuple[str, str], Limit]:
    """Return the limits of the settings by rule and bucket id, as keys name them."""
    return {
        (limit_set.bucket_name, compiled.policy.limit.bucket): compiled.policy.limit
        for limit_set in target.rules.all_limit_sets
        for compiled in limit_set.known_limits
    }


def inventory_of(store: Store) -> Inventory:
    """Return the store, if operators can list its keys. Raises `ConfigError` otherwise."""
    inventory = declared(store).inventory
    if inventory is None:
        raise ConfigError(
            f"store: {type(store).__name__} can neither list its keys nor keep refusals; a store of your own needs the "
            "methods of ratelimit_mw.stores.inventory.Inventory",
            code="RL-040",
        )
    return inventory
