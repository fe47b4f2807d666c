"""Shows operators which clients are limited, and resets them. `peek`, `reset`, `keys` and `top` are commands, too.

The functions block, so call them from a thread, not from an event loop. `settings`: a `Settings` object, a mapping, or
the path of a file. All raise `ConfigError` for invalid arguments and `StoreError` if the store gives no answer, or if
it is in the memory of another process.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.admin.buckets import Bucket, find_buckets, look, split_key
from ratelimit_mw.admin.changing import (
    Changes,
    Overrides,
    changes,
    clear_override,
    overrides,
    set_override,
    switch,
    undo,
)
from ratelimit_mw.admin.in_force import overrides_in_force
from ratelimit_mw.admin.listing import Listing, inventory_of
from ratelimit_mw.admin.override_set import Change
from ratelimit_mw.admin.target import DescribedRequest, SettingsSource, Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, check_int, check_seconds
from ratelimit_mw.rules.override_entries import Override
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.inventory import KEPT_SECONDS

__all__ = [
    "Bucket",
    "Buckets",
    "Change",
    "Changes",
    "Clients",
    "Keys",
    "Override",
    "Overrides",
    "RefusedClient",
    "changes",
    "clear_override",
    "keys",
    "overrides",
    "peek",
    "reset",
    "reset_all",
    "reset_key",
    "set_override",
    "switch",
    "top",
    "undo",
]

DEFAULT_MOST: Final = 100  # clients


class Buckets(Struct, frozen=True, omit_defaults=True):
    """The buckets of a request. `forgotten`: how many of them existed before a reset; None without one.

    `overrides`: the overrides and switches that apply to the request.
    """

    buckets: Sequence[Bucket]
    forgotten: int | None = None
    overrides: Sequence[Override] = ()


class Keys(Struct, frozen=True):
    """Buckets of the store. `seen`: the share of the store's keys that were read, from 0.0 to 1.0."""

    keys: Sequence[Bucket]
    seen: float


class RefusedClient(Struct, frozen=True):
    """A client of a rule. `key`: the identity in the store. `refused`: the number of refusals, or slightly less."""

    key: str
    rule: str
    refused: int


class Clients(Struct, frozen=True):
    """The clients that were refused most, the most refused one first."""

    clients: Sequence[RefusedClient]


def peek(
    settings: SettingsSource,
    request: str,
    *,
    ip: str | None = None,
    user: str | None = None,
    headers: Sequence[str] | Mapping[str, str] = (),
    host: str | None = None,
) -> Buckets:
    """Return what is left in the buckets that a request would charge. Changes nothing.

    `request`: method and path, such as `POST /login`. `ip`: the address of the client, or of the trusted proxy that
    `headers` come from. `user`: the name or id of the logged-in user.
    """
    target, described = Target.of(settings), DescribedRequest(request, ip, user, headers, host)
    with target.open_store() as store:
        found = find_buckets(target, described, overrides_in_force(target, store))
        return Buckets(look(store, found.charges), overrides=found.overrides)


def reset(
    settings: SettingsSource,
    request: str,
    *,
    ip: str | None = None,
    user: str | None = None,
    headers: Sequence[str] | Mapping[str, str] = (),
    host: str | None = None,
) -> Buckets:
    """Forget the buckets that a request would charge, and return them as they are then. The arguments are `peek`'s.

    With an override of the client, both its buckets and those without it.

    The next request is admitted. A process that remembers a refusal may repeat it for up to `deny_cache` seconds, by
    default one.
    """
    target, described = Target.of(settings), DescribedRequest(request, ip, user, headers, host)
    with target.open_store() as store:
        found = find_buckets(target, described, overrides_in_force(target, store), with_originals=True)
        return replace(forget(store, found.charges), overrides=found.overrides)


def reset_key(settings: SettingsSource, key: str, *, rule: str | None = None) -> Buckets:
    """Forget the buckets of a client's key in the store, and return them as they are then.

    `key`: as `keys` and `top` return it. `rule`: only the buckets of this rule; `login` is also `@login` and
    `@login()`. Finds those of limits on endpoints too. Reads all keys of the store, as `keys` does.
    """
    target = Target.of(settings)
    with target.open_store() as store:
        return forget(store, Listing(target, store, key=key, rule=rule).charges())


def reset_all(settings: SettingsSource, *, rule: str | None = None) -> int:
    """Forget all buckets of the store, and return how many of them had something counted.

    `rule`: only the buckets of this rule; `login` is also `@login` and `@login()`. Buckets of limits that neither the
    settings nor the key describe stay. Reads all keys of the store, as `keys` does.
    """
    target = Target.of(settings)
    with target.open_store() as store:
        return Listing(target, store, rule=rule).forget()


def forget(store: Store, charges: Sequence[Charge], before: Sequence[Bucket] | None = None) -> Buckets:
    """Do what `reset` does, for the buckets of these charges. `before`: what `look` returned; None to look now."""
    if not charges:
        return Buckets([], 0)
    existed = sum(bucket.exists for bucket in (look(store, charges) if before is None else before))
    store.reset(charges)
    return Buckets(look(store, charges), existed)


def keys(
    settings: SettingsSource,
    *,
    limited: bool = False,
    key: str | None = None,
    rule: str | None = None,
    most: int | None = None,
) -> Keys:
    """Return the buckets of the store, unordered. `limited`: only those that would now refuse a request of one unit.

    `key`, `rule`: only the buckets of this client's key, and of this rule. `most`: stops after so many buckets. Reads
    all keys of the store, with pauses, so that the server has four fifths of its time for the app.
    """
    target, number = Target.of(settings), None if most is None else check_int("most", most, 1)
    with target.open_store() as store:
        listing = Listing(target, store, limited=limited, key=key, rule=rule)
        return Keys(list(islice(listing, number)), round(listing.seen, 4))


def top(settings: SettingsSource, *, since: float = KEPT_SECONDS, most: int = DEFAULT_MOST) -> Clients:
    """Return the clients that were refused most in the last `since` seconds, counted by whole minutes.

    It needs the setting `remember_refused`. The store keeps refusals for an hour.
    """
    if not 0 < check_seconds("since", since) <= KEPT_SECONDS:
        raise ConfigError(f"since: got {since}, expected more than 0 and at most {KEPT_SECONDS} seconds", code="RL-051")
    return Clients(most_refused(Target.of(settings), since, check_int("most", most, 1)))


def most_refused(target: Target, since: float, most: int) -> list[RefusedClient]:
    """Do what `top` does, for a target."""
    with target.open_store() as store:
        counts = inventory_of(store).most_refused(time.time() - since)
    highest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    return [RefusedClient(*split_key(key), refused) for key, refused in highest]
