"""Finds overrides that have no effect, because no key of a limit reads what describes the client."""

from collections.abc import Sequence
from typing import Final

from ratelimit_mw.admin.buckets import USER_IS, look
from ratelimit_mw.admin.target import Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.http.networks import parse_network
from ratelimit_mw.rules.override_entries import ADDRESS, KEY, Action, Override
from ratelimit_mw.settings.compiled import LimitSet

_NO_KEY: Final = (
    "override: {who} has no effect, because no key of {rules} reads {kind!r}: {keys}; describe the client by what one "
    "of these reads, or by --key, as `peek` prints it"
)
_UNKNOWN: Final = "nothing is counted for {who}: is that how the app names this user"
_NARROW: Final = (
    "limits count the network {wide} as one client (ipv6_prefix), and this concerns only a part of it; for all of it, "
    "use --ip {wide}"
)


def check_reach(target: Target, rule: str | None, who: str, action: Action) -> None:
    """Raise `ConfigError` if no key of the rules can have this client.

    Nothing is known of limits that a callable returns and, without the framework's app, of those on endpoints.
    """
    kind = who.partition("=")[0]
    find_rules = target.find_endpoint_rules
    is_block_of_address = who.startswith(ADDRESS) and action == "block"  # concerns each request
    is_unknown = find_rules is None and (rule is None or rule.startswith("@"))
    if who.startswith(KEY) or is_block_of_address or is_unknown:
        return
    concerned = _concerned(target, rule)
    keys = {key.text: key for one in concerned for key in one.keys}
    may_have_others = any(one.fixed_limits is None and one.tier is None for one in concerned)
    if not keys or may_have_others or any(key.reads(kind) for key in keys.values()):
        return
    rules = "any rule" if rule is None else f"the rule {rule}"
    text = _NO_KEY.format(who=who, rules=rules, kind=kind, keys=", ".join(map(repr, keys)))
    raise ConfigError(text, code="RL-064")


def _concerned(target: Target, rule: str | None) -> Sequence[LimitSet]:
    find_rules = target.find_endpoint_rules
    limit_sets = [*target.rules.all_limit_sets]
    limit_sets += [] if find_rules is None else [one.limit_set for one in find_rules() if not one.is_exempt]
    return [one for one in limit_sets if rule is None or rule in one.rule_names]


def unknown_user(target: Target, override: Override) -> str | None:
    """Return a note on an override of a user without any counts; None if something is, or may be.

    Looks at the limits whose key is the user alone, because others need more of a request.
    """
    if not override.who.startswith("user="):
        return None
    limits = [one for limit_set in _concerned(target, override.rule) for one in limit_set.known_limits]
    of_user = [one for one in limits if one.key.text.partition(" | ")[0] == "user"]
    if not of_user:
        return None
    charges = [one.charge(one.tag_of(override.who), 1) for one in of_user]
    with target.open_store() as store:
        return (
            None
            if any(bucket.exists for bucket in look(store, charges))
            else _UNKNOWN.format(who=override.who) + USER_IS
        )


def wider_network(target: Target, override: Override) -> str | None:
    """Return a note on an override of a part of what limits count as one client; None if it is not such a part."""
    prefix = target.settings.ipv6_prefix
    if not override.who.startswith(ADDRESS):
        return None
    network = parse_network(override.who[len(ADDRESS) :])
    if network.version == 4 or network.prefixlen <= prefix:  # noqa: PLR2004  # the version of IP
        return None
    return _NARROW.format(wide=network.supernet(new_prefix=prefix))
