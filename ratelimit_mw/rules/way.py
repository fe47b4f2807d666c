"""What a request is charged where its path, its method and the client's address decide."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import force_setattr

from ratelimit_mw.core.limit import Charge, PlainGroup
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.rules.overrides import NO_OVERRIDES, ActiveOverrides
from ratelimit_mw.rules.plan import BLOCKLIST, Match, Plan, with_distinct_buckets
from ratelimit_mw.settings.compiled import CompiledLimit
from ratelimit_mw.settings.features import SHARES
from ratelimit_mw.stores.group import is_plain

_NO_TAG: Final = "{}"
_ALL_BITS: Final = 128


class Way:
    """The charges of all requests to one place, without the client. Made once per leaf of the path tree and method.

    `templates`: the charges of `match`, with the key that an empty tag gives. `prefix`: the bits of an IPv6 address
    that identify a client. `are_shortest`: see `ActiveOverrides.tagger`. `charges(client)`: returns the charges of a
    client; None if `client` is not an address. `share`: of what may be at work with a latency goal, which these
    requests may use; None if the goal does not concern them. `verdict`: that of a request without charges; None if
    nothing limits it.
    """

    __slots__ = (
        "_is_plain",
        "_limits",
        "_tag",
        "_templates",
        "charges",
        "match",
        "policies",
        "rule",
        "share",
        "verdict",
    )

    def __init__(
        self,
        match: Match,
        templates: Sequence[Charge] = (),
        prefix: int = _ALL_BITS,
        overrides: ActiveOverrides = NO_OVERRIDES,
        *,
        are_shortest: bool = False,
        share: float | None = None,
    ) -> None:
        self.match: Final = match
        self.rule: Final = match.rule
        self.policies: Final = match.policies
        self.share: Final = share
        self.verdict: Final = Verdict(False, (), (), match.rule, match.source) if match.denied else None
        self._limits: Final[Sequence[CompiledLimit]] = match.fixed_limits or ()
        tag_of = self._limits[0].tag_of if self._limits else str
        self._tag: Final = overrides.tagger(prefix, tag_of, are_shortest=are_shortest)
        # of each charge: itself if all clients share it, else its copying method and the end of its key
        self._templates: Final[list[tuple[Charge | None, Callable[[], Charge], str]]] = [
            (template if limit.key.is_all else None, template.__copy__, template.key.removeprefix(_NO_TAG))  # type: ignore[attr-defined]  # of msgspec's structs
            for limit, template in zip(self._limits, templates, strict=True)
        ]
        self._is_plain: Final = is_plain(templates)
        self.charges: Final = overrides.remembered(self.new_charges).__getitem__

    def new_charges(self, client: str) -> Sequence[Charge] | None:
        """Return the charges of a client, for the memo `charges`."""
        tag = self._tag(client)
        if tag is None:
            return None
        charges: list[Charge] = []
        for shared, copy, rest in self._templates:
            if shared is None:
                charge = copy()
                force_setattr(charge, "key", tag + rest)
                charges.append(charge)
            else:
                charges.append(shared)
        if not self._is_plain:
            return tuple(charges)
        group = PlainGroup(charges)
        group.shape_key = self
        return group

    def plan(self, charges: Sequence[Charge]) -> Plan:
        """Return a client's charges with their limits."""
        return Plan(charges, self._limits, self.policies)


NOT_LIMITED: Final = Way(Match((), "unmatched", "unmatched"))
BLOCKED: Final = Way(Match((), BLOCKLIST, "unmatched", denied=True))


def way_of(match: Match, overrides: ActiveOverrides = NO_OVERRIDES, *, are_shortest: bool = False) -> Way | None:
    """Return the way of requests with these limits; None if more than method, path and address decide.

    `are_shortest`: whether all clients are addresses in their shortest form.
    """
    if match.denied:
        return BLOCKED
    limits = match.fixed_limits
    if limits is None or match.callables or match.may_delay or match.settles or match.has_slots or match.has_queue:
        return None
    prefixes = {limit.key.address_prefix for limit in limits if not limit.key.is_all}
    if None in prefixes or len(prefixes) > 1:  # two buckets of an IPv6 client may be one of an IPv4 client
        return None
    prefix = next((one for one in prefixes if one is not None), _ALL_BITS)
    templates = [
        limit.charge(limit.tag_of("all=all") if limit.key.is_all else _NO_TAG, limit.cost_of({})) for limit in limits
    ]
    share = SHARES[match.priority]
    return Way(match, with_distinct_buckets(templates), prefix, overrides, are_shortest=are_shortest, share=share)
