"""What a request is charged where its path, its method and the client's address decide."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import force_setattr

from ratelimit_mw.core.limit import Charge, PlainGroup
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.rules.compiled import CompiledLimit
from ratelimit_mw.rules.plan import Match, Plan, is_plain, with_distinct_buckets


class Way:
    """The charges of all requests to one place, without the client. Made once per leaf of the path tree and method.

    `templates`: the charges of `match`, with the key that an empty tag gives. `prefix`: the bits of an IPv6 address
    that identify a client. `verdict`: that of a request without charges; None if nothing limits it.
    """

    __slots__ = ("_group", "_limits", "_prefix", "_tag_of", "_templates", "match", "policies", "rule", "verdict")

    def __init__(self, match: Match, templates: Sequence[Charge] = (), prefix: int = 0) -> None:
        self.match: Final = match
        self.rule: Final = match.rule
        self.policies: Final = match.policies
        self.verdict: Final = Verdict(False, (), (), match.rule) if match.denied else None
        self._limits: Final[Sequence[CompiledLimit]] = match.fixed_limits or []
        self._prefix: Final = prefix
        self._tag_of: Final = self._limits[0].tag_of if templates else str
        # of each charge: itself if all clients share it, else its copying method and the end of its key
        self._templates: Final = [
            (template if limit.key.is_all else None, template.__copy__, template.key.removeprefix(_NO_TAG))  # type: ignore[attr-defined]  # of msgspec's structs
            for limit, template in zip(self._limits, templates, strict=True)
        ]
        self._group: Final[type[tuple[Charge, ...]]] = PlainGroup if is_plain(templates) else tuple

    def charges(self, client: str) -> Sequence[Charge]:
        """Return the charges of a client. `client`: its address in the shortest form."""
        identity = f"ip={client}" if ":" not in client else f"ip={client_address(client, self._prefix)}"
        tag, charges = self._tag_of(identity), []
        for shared, copy, rest in self._templates:
            if shared is None:
                charge = copy()
                force_setattr(charge, "key", tag + rest)
                charges.append(charge)
            else:
                charges.append(shared)
        return self._group(charges)

    def plan(self, charges: Sequence[Charge]) -> Plan:
        """Return a client's charges with their limits."""
        return Plan(charges, self._limits, self.policies)


_NO_TAG: Final = "{}"
NOT_LIMITED: Final = Way(Match((), "unmatched", "unmatched"))
BLOCKED: Final = Way(Match((), "blocklist", "unmatched", denied=True))


def way_of(match: Match) -> Way | None:
    """Return the way of requests with these limits; None if more than method, path and address decide."""
    if match.denied:
        return BLOCKED
    limits = match.fixed_limits
    if limits is None or match.callables or match.may_delay or match.settles or match.has_slots or match.has_queue:
        return None
    prefixes = {limit.key.address_prefix for limit in limits if not limit.key.is_all}
    if None in prefixes or len(prefixes) > 1:  # two buckets of an IPv6 client may be one of an IPv4 client
        return None
    prefix = next((one for one in prefixes if one is not None), 0)
    templates = [
        limit.charge(limit.tag_of("all=all") if limit.key.is_all else _NO_TAG, limit.cost_of({})) for limit in limits
    ]
    return Way(match, with_distinct_buckets(templates), prefix)
