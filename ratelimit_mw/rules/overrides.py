"""Overrides: limits, an exemption or a block of one client for a time, and switches for everyone. Pure: no store.

Policy: for each rule, the override with the narrowest description of the client decides, then the switch: a key in the
store before a part of the key such as the user, before an address, before a network, before limits for everyone; an
override of the rule before one of all rules. Of addresses and networks, a block that decides comes before all else, as
a client chooses its user or header more easily than its address. A switch to `off` or `shadow` lifts no block, and
`off` for all rules comes before the switch of one rule.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from itertools import groupby
from math import inf
from socket import AF_INET6, inet_aton, inet_pton
from typing import Any, Final, TypeVar

from msgspec import DecodeError

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.memo import Budget, Memo
from ratelimit_mw.http.callables import CallResults
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.http.keys import KeyContext
from ratelimit_mw.http.networks import parse_network, shortest
from ratelimit_mw.rules.override_entries import (
    ADDRESS,
    EVERYONE,
    KEY,
    Action,
    Override,
    decode_override,
    warn_invalid_override,
)
from ratelimit_mw.settings.compiled import CompiledLimit, LimitSet

_CHUNK: Final = 100  # entries that are indexed in less than a millisecond
_MAX_RECENT: Final = 16_384  # clients
_MAX_GROUPS: Final = 16_384  # charges of recent clients, over all ways; making them takes a third of a request
_MAX_SHOWN: Final = 100  # bytes of an invalid entry
T = TypeVar("T")


class Index:
    """Entries by client. `fill` adds them in steps of less than a millisecond each."""

    def __init__(self) -> None:
        self.by_who: Final[dict[str, tuple[Override, ...]]] = {}
        self.by_key: Final[dict[str, tuple[Override, ...]]] = {}  # by the tag of the client's key, with its braces
        self.everyone: tuple[Override, ...] = ()
        # (IP version, bits of a host) -> number of the network -> entries; filled from the smallest networks on
        self.networks: dict[tuple[int, int], dict[int, tuple[Override, ...]]] = {}
        self.ends: Final[list[tuple[float, int, Override]]] = []  # a heap
        self.counts: Final = Counter[Action]()

    def fill(self, text: bytes) -> Iterator[None]:
        """Add the entries of a text. Yields between two steps. Leaves out an entry that is invalid, with a warning."""
        lines = text.split(b"\n") if text else []
        for start in range(0, len(lines), _CHUNK):
            for number, line in enumerate(lines[start : start + _CHUNK], start):
                try:
                    entry = decode_override(line)
                    self._add(entry)
                except (DecodeError, ConfigError) as error:
                    warn_invalid_override(line[:_MAX_SHOWN].decode(errors="replace"), error)
                    continue
                self.ends.append((entry.until, number, entry))
                self.counts[entry.action] += 1
            yield
        heapify(self.ends)
        self.networks = dict(sorted(self.networks.items()))

    def _add(self, entry: Override) -> None:
        if entry.who == EVERYONE:
            self.everyone = (*self.everyone, entry)
            return
        place, key = self._place(entry.who)
        place[key] = (*place.get(key, ()), entry)

    def remove(self, entry: Override) -> None:
        """Remove an entry. Other threads may look up entries meanwhile."""
        self.counts[entry.action] -= 1
        if entry.who == EVERYONE:
            self.everyone = tuple(one for one in self.everyone if one is not entry)
            return
        place, key = self._place(entry.who)
        place[key] = tuple(one for one in place.get(key, ()) if one is not entry)
        if not place[key]:
            del place[key]

    def _place(self, who: str) -> tuple[dict[Any, tuple[Override, ...]], str | int]:
        """Return the dict that has the entries of a client, and the key in it. Raises `ConfigError`."""
        if who.startswith(KEY):
            return self.by_key, f"{{{who[len(KEY) :]}}}"
        if not who.startswith(ADDRESS) or "/" not in who:
            return self.by_who, who
        network = parse_network(who[len(ADDRESS) :])
        bits = network.max_prefixlen - network.prefixlen
        return self.networks.setdefault((network.version, bits), {}), int(network.network_address) >> bits

    def has_address(self, address: str) -> bool:
        """Return whether an entry concerns an address in its shortest form."""
        return f"{ADDRESS}{address}" in self.by_who or (bool(self.networks) and any(self.of_address(address)))

    def of_address(self, address: str) -> Iterator[tuple[Override, ...]]:
        """Yield the entries of an address in its shortest form, then those of its networks, the smallest first."""
        yield self.by_who.get(ADDRESS + address, ())
        if self.networks:
            is_ipv6 = ":" in address
            number = int.from_bytes(inet_pton(AF_INET6, address) if is_ipv6 else inet_aton(address))
            for (version, bits), places in tuple(self.networks.items()):
                if version == (6 if is_ipv6 else 4):
                    yield places.get(number >> bits, ())


class _Recent(Memo[str, T]):
    """What holds for recent clients until the overrides change, by their addresses."""

    def __init__(self, overrides: "ActiveOverrides", make: Callable[[str], T], budget: Budget) -> None:
        self._overrides: Final = overrides
        super().__init__(make, budget)

    def __missing__(self, client: str) -> T:
        generation = self._overrides.generation
        value = super().__missing__(client)
        if generation != self._overrides.generation:  # all were forgotten before this value was kept
            self.pop(client, None)
        return value


class ActiveOverrides:
    """The overrides of a store that are in force in this process. Thread-safe.

    `next_end`: when the next entry ends, in seconds since 1970. `generation`: the number of changes so far.
    `groups`: bounds the charges that ways remember. `is_known`: False before the first look, so that all requests
    wait for it.
    """

    def __init__(self, *, is_known: bool = True) -> None:
        self.is_known = is_known
        self.next_end = inf
        self.generation = 0
        self._index = Index()
        self.groups: Final = Budget(_MAX_GROUPS)
        self._recent: Final = Budget(_MAX_RECENT)
        self._addresses: Final = _Recent(self, self._has_address, self._recent)

    @property
    def entries(self) -> Sequence[Override]:
        """The entries that have not ended."""
        return [entry for _, _, entry in self._index.ends]

    @property
    def counts(self) -> Mapping[Action, int]:
        """The number of entries by action."""
        return self._index.counts

    def tagger(
        self, prefix: int, tag_of: Callable[[str], str], *, are_shortest: bool = False
    ) -> Callable[[str], str | None]:
        """Return a function that returns the tag of a client by its address.

        It returns None for a text that is no address, and for a client that an override concerns. `are_shortest`: the
        clients are addresses in their shortest form, so one without a colon is an IPv4 address. Looking at it again
        would take a fifth of the time.
        """

        def tag(client: str) -> str | None:
            address = client if are_shortest and ":" not in client else client_address(client, prefix)
            if address is None:
                return None
            found = tag_of(f"{ADDRESS}{address}")
            return None if self.concerns(client if ":" in address else address, found) else found

        return tag

    def remembered(self, make: Callable[[str], T]) -> Memo[str, T]:
        """Return a memo of what `make` returns for a client, until the overrides change. `groups` bounds all such."""
        return _Recent(self, make, self.groups)

    def take_over(self, index: Index, now: float) -> None:
        """Use the entries of a filled index from now on. `now`: seconds since 1970."""
        self._index, self.is_known = index, True
        self.expire(now)
        self._changed()

    def give_up(self) -> None:
        """Go on without the first look, which failed."""
        if not self.is_known:
            self.is_known = True
            self._changed()

    def expire(self, now: float) -> None:
        """Drop the entries that have ended. `now`: seconds since 1970. Call it in one thread at a time."""
        ends, has_ended = self._index.ends, False
        while ends and ends[0][0] <= now:
            self._index.remove(heappop(ends)[2])
            has_ended = True
        self.next_end = ends[0][0] if ends else inf
        if has_ended:
            self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self.groups.clear()
        self._recent.clear()

    def _has_address(self, client: str) -> bool | None:
        address = shortest(client)
        return None if address is None else self._index.has_address(address)

    def concerns(self, client: str, tag: str) -> bool:
        """Return whether an override may concern a client.

        `client`: an address; in its shortest form if it has no colon. `tag`: from `CompiledLimit.tag_of`. The caller
        remembers the result, so this does not use `_addresses`.
        """
        index = self._index
        if not index.ends:
            return not self.is_known
        if index.everyone or tag in index.by_key:
            return True
        address = shortest(client) if ":" in client else client
        return address is not None and index.has_address(address)

    def concerns_request(
        self, limits: Sequence[CompiledLimit], request: KeyContext, route: str, results: CallResults
    ) -> bool:
        """Return whether an override may change what a request is charged."""
        index = self._index
        if not index.ends:
            return False
        if index.everyone or (request.client is not None and self._addresses[request.client]):
            return True
        key = None
        for limit in limits:
            if limit.key is not key:
                key, identity = limit.key, limit.identity(request, route, results)
                if identity is None:
                    continue
                if identity in index.by_who or (
                    "+" in identity and not index.by_who.keys().isdisjoint(identity.split("+"))
                ):
                    return True
                if index.by_key and limit.tag_of(identity) in index.by_key:
                    return True
        return False

    def limits_for(
        self,
        limits: Sequence[CompiledLimit],
        request: KeyContext,
        route: str,
        results: CallResults,
        *,
        refuses: bool = True,
    ) -> Sequence[CompiledLimit] | None:
        """Return the limits that apply to a request instead of these; None if it is blocked.

        `refuses`: whether requests may be refused, see the setting `shadow`.
        """
        index, address = self._index, shortest(request.client)
        if not limits:
            entry = None if address is None else _first(index.of_address(address), None)
            return None if refuses and entry is not None and entry.action == "block" else limits
        chosen: list[CompiledLimit] = []
        is_changed = False
        for limit_set, group in groupby(limits, lambda limit: limit.limit_set):
            own = list(group)
            entry, limit = self._entry_of(own, address, request, route, results)
            switched = self._switch_of(limit_set)
            switch = None if switched is None else switched.action
            if entry is None and switch is None:
                chosen += own
                continue
            is_changed = True
            action = "" if entry is None else entry.action
            if refuses and action == "block":
                return None
            if action == "exempt" or switch == "off":
                continue
            if entry is not None and entry.limits is not None:
                own = _replaced(limit_set, own, limit, entry)
            if switch == "shadow":  # as in a shadow rule, which has no penalty
                own = [limit_set.in_shadow(one) for one in own if not one.is_penalty]
            chosen += own
        return chosen if is_changed else limits

    def applied(
        self, limits: Sequence[CompiledLimit], request: KeyContext, route: str, results: CallResults
    ) -> Sequence[Override]:
        """Return the overrides and switches that `limits_for` applies; one may be there several times."""
        index, address = self._index, shortest(request.client)
        found = [] if limits or address is None else [_first(index.of_address(address), None)]
        for rule, group in groupby(limits, lambda limit: limit.limit_set):
            found += [self._entry_of(list(group), address, request, route, results)[0], self._switch_of(rule)]
        return [one for one in found if one is not None and (limits or one.action == "block")]

    def _switch_of(self, limit_set: LimitSet) -> Override | None:
        """Return the switch of a rule: `off` for all rules, else that of the rule, else that for all rules."""
        switches = [one for one in self._index.everyone if one.limits is None]
        off_for_all = [one for one in switches if one.rule is None and one.action == "off"]
        return _first([off_for_all, switches], limit_set)

    def switch_of_all(self) -> Action | None:
        """Return the action of the switch for all rules."""
        return next((entry.action for entry in self._index.everyone if entry.rule is None), None)

    def of_key(self, tag: str) -> Override | None:
        """Return what applies to a key without a rule: its own override, or the switch for all rules.

        `tag`: see `CompiledLimit.tag_of`.
        """
        own = _first([self._index.by_key.get(tag, ())], None)
        return own or next((entry for entry in self._index.everyone if entry.rule is None), None)

    def _entry_of(
        self, own: Sequence[CompiledLimit], address: str | None, request: KeyContext, route: str, results: CallResults
    ) -> tuple[Override | None, CompiledLimit]:
        """Return the override of a rule for the client of a request, and the limit whose key it concerns.

        `own`: the limits of the rule. A block of an address concerns each request from it, whatever the key.
        """
        index, rule = self._index, own[0].limit_set
        of_address = None if address is None else _first(index.of_address(address), rule)
        if of_address is not None and of_address.action == "block":
            return of_address, own[0]
        parts_of = [(limit, limit.identity(request, route, results) or "") for limit in own]
        for limit, identity in parts_of:
            if identity and index.by_key and (entry := _first([index.by_key.get(limit.tag_of(identity), ())], rule)):
                return entry, limit
        for limit, identity in parts_of:
            others = [index.by_who.get(part, ()) for part in identity.split("+") if not part.startswith(ADDRESS)]
            if (entry := _first(others, rule)) is not None:
                return entry, limit
        if of_address is not None:
            for limit, identity in parts_of:
                if any(part.startswith(ADDRESS) for part in identity.split("+")):
                    return of_address, limit
        return _first([[one for one in index.everyone if one.limits is not None]], rule), own[0]


def _first(found: Iterable[Sequence[Override]], limit_set: LimitSet | None) -> Override | None:
    """Return the first override of a rule; of equal ones, one that names it. `limit_set`: None for no rule."""
    for entries in found:
        for entry in entries:
            if limit_set is not None and entry.rule in limit_set.rule_names:
                return entry
        for entry in entries:
            if entry.rule is None:
                return entry
    return None


def _replaced(
    limit_set: LimitSet, own: list[CompiledLimit], limit: CompiledLimit, entry: Override
) -> list[CompiledLimit]:
    try:
        return list(limit_set.overridden(limit, entry.limits or ""))
    except ConfigError as error:
        warn_invalid_override(entry.id, error)
        return own


NO_OVERRIDES: Final = ActiveOverrides()
"""Those of a store that keeps none."""
