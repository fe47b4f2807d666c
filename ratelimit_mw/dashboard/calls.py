"""The POST calls of the page: look at a client, preview a change, and make it, with the functions of `admin`."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from msgspec import structs

from ratelimit_mw.admin import reset, reset_key
from ratelimit_mw.admin.buckets import Bucket, find_buckets, look
from ratelimit_mw.admin.changing import DAY, NOTHING_LEFT, changes, clear_override, set_override, switch, undo
from ratelimit_mw.admin.in_force import overrides_in_force
from ratelimit_mw.admin.listing import Listing
from ratelimit_mw.admin.override_arguments import signature
from ratelimit_mw.admin.override_commands import applied_lines
from ratelimit_mw.admin.override_set import new_change, opened_set
from ratelimit_mw.admin.target import DescribedRequest, Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.identity import rule_spellings
from ratelimit_mw.dashboard.concerned import concerning
from ratelimit_mw.dashboard.preview import preview
from ratelimit_mw.dashboard.reader import Snapshot
from ratelimit_mw.dashboard.shown_rules import ShownRule, toml_of
from ratelimit_mw.http.networks import parse_address

Body = Mapping[str, Any]
_KINDS: Final = ("ip", "user", "key")


def look_at(target: Target, shown: Mapping[str, ShownRule], body: Body) -> dict[str, Any]:
    """Return the buckets of a client, and why it is limited. Raises `ConfigError` for a mistake."""
    if "key" in body:
        key, rule = _text(body, "key"), _text(body, "rule", "") or None
        with target.open_store() as store:
            buckets = look(store, Listing(target, store, key=key, rule=rule).charges())
            overrides = concerning(key, rule, overrides_in_force(target, store).entries)
        why = [] if buckets else ["Nothing is counted for this client."]
        looked = _looked(shown, "", f"key {key}", buckets, [one.rule for one in buckets], why)
        return looked | {"overrides": [structs.asdict(one) for one in overrides]}
    line, client = _text(body, "request"), _text(body, "client", "")
    described = DescribedRequest(line, **_described(client))
    with target.open_store() as store:
        found = find_buckets(target, described, overrides_in_force(target, store), need_all=False)
        buckets = look(store, found.charges)
    why = [*found.missing, *([found.reason] if found.reason else []), *applied_lines(found.overrides)]
    looked = _looked(shown, line, client, buckets, found.names, why)
    return looked | {"overrides": [structs.asdict(one) for one in found.overrides]}


def _looked(
    shown: Mapping[str, ShownRule],
    request: str,
    client: str,
    buckets: Sequence[Bucket],
    names: Sequence[str],
    why: Sequence[str],
) -> dict[str, Any]:
    rules = dict.fromkeys(name for one in buckets for name in rule_spellings(one.rule) if name in shown)
    matched = [f"{name} matches: {shown[name].match}, {shown[name].where}." for name in rules if shown[name].where]
    rows = [structs.asdict(one) | {"name": name} for one, name in zip(buckets, names, strict=False)]
    for row in rows:
        row["quota"] = _quota(row["limit"])
    full = [f"{row['name']} is used up: {row['limit']}." for row in rows if row["retry_after"] > 0]
    return {
        "request": request,
        "client": client,
        "buckets": rows,
        "overrides": [],
        "why": [*matched, *why, *full],
    }


def _quota(limit: str) -> int | None:
    number = limit.partition("/")[0]
    return int(number) if number.isdigit() else None


def _described(client: str) -> dict[str, Any]:
    """Return the arguments that describe a client, from the text of a field."""
    kind, _, value = client.strip().partition(" ")
    if kind in _KINDS[:2] and value.strip():
        return {kind: value.strip()}
    if ":" in client and parse_address(client.strip()) is None:
        return {"headers": [client]}
    if not client.strip():
        return {}
    return {"ip" if parse_address(client.strip()) is not None else "user": client.strip()}


def preview_of(snapshot: Snapshot, shown: Mapping[str, ShownRule], body: Body) -> dict[str, Any]:
    """Return what a change of a rule would do. Raises `ConfigError` for a mistake."""
    rule, state = _text(body, "rule"), _text(body, "state", "on")
    described = shown.get(rule) or ShownRule(rule, None, "", "", "", "on")
    limits = _text(body, "limits", "") or described.limits or ""
    return preview(snapshot, rule, state, limits) | {"toml": toml_of(described, state, limits)}


def change(target: Target, body: Body, by: str) -> dict[str, Any]:
    """Make a change. Return what was done, and its id. Raises `ConfigError` for a mistake, and `NothingLeft`."""
    make = _CHANGES.get(_text(body, "do", ""))
    if make is None:
        raise ConfigError(f"do: got {body.get('do')!r:.100}, expected one of {', '.join(_CHANGES)}", code="RL-072")
    note = _text(body, "note", "")
    before = {one.id for one in changes(target).changes}
    make(target, body, {"note": note, "by": by})
    latest = next(iter(changes(target).changes), None)
    if latest is None or latest.id in before:
        raise NothingLeft("switch: nothing to end")
    return {"done": latest.what, "id": latest.id}


def _switch(target: Target, body: Body, signed: Any) -> None:
    state: Any = _text(body, "state", "")
    switch(target, state, rule=body.get("rule"), duration=_duration(body), **signed)


def _limits(target: Target, body: Body, signed: Any) -> None:
    rule, limits = _text(body, "rule"), _text(body, "limits")
    set_override(target, everyone=True, rule=rule, limits=limits, duration=_duration(body), **signed)


def _override(target: Target, body: Body, signed: Any) -> None:
    who = body.get("who")
    if not isinstance(who, Mapping) or len(who) != 1 or not {*who} <= {*_KINDS, "header"}:
        raise ConfigError(f"who: got {who!r:.100}, expected one of ip, user, key and header", code="RL-072")
    client: dict[str, Any] = {"headers": [who["header"]]} if "header" in who else dict(who)
    action = _text(body, "action")
    limits = _text(body, "limits") if action == "limits" else None
    what: dict[str, Any] = {"limits": limits, "exempt": action == "exempt", "block": action == "block"}
    set_override(target, **client, **what, rule=body.get("rule"), duration=_duration(body), **signed)


def _clear(target: Target, body: Body, signed: Any) -> None:
    cleared = clear_override(target, id=_text(body, "id"), **signed).overrides
    if not cleared:
        raise NothingLeft("override: nothing of this id is left to clear")


def _undo(target: Target, body: Body, signed: Any) -> None:
    try:
        undo(target, _text(body, "id"), **signed)
    except ConfigError as error:
        if NOTHING_LEFT in error.problems[0]:
            raise NothingLeft(error.problems[0]) from None
        raise


def _reset(target: Target, body: Body, signed: Any) -> None:
    if "key" in body:
        client, settings = f"key={_text(body, 'key')}", target.settings
        found = reset_key(settings, _text(body, "key"), rule=body.get("rule"))
    else:
        client = _text(body, "client", "")
        found = reset(target.settings, _text(body, "request"), **_described(client))
    note, by = signature(signed["note"], signed["by"])
    number = found.forgotten or 0
    what = f"reset {client}: {number} bucket{'' if number == 1 else 's'}"
    with opened_set(target) as kept:
        kept.note(new_change(what, note, by))


_CHANGES: Final[Mapping[str, Callable[[Target, Body, Any], None]]] = {
    "switch": _switch,
    "limits": _limits,
    "override": _override,
    "clear": _clear,
    "reset": _reset,
    "undo": _undo,
}


class NothingLeft(Exception):
    """There is nothing left to undo, to clear, or to end."""


def _text(body: Body, name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{name}: got {value!r:.100}, expected text", code="RL-072")
    return value


def _duration(body: Body) -> float:
    value = body.get("for", DAY)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ConfigError(f"for: got {value!r:.100}, expected seconds", code="RL-072")
    return float(value)
