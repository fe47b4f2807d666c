"""Changes what an app limits while it runs: overrides of one client, and switches for everyone.

`rules.overrides` describes which one decides.
"""

import time
from collections.abc import Sequence
from typing import Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.admin.override_arguments import (
    Headers,
    action_of,
    checked_duration,
    checked_rule,
    shown_duration,
    signature,
    who_of,
)
from ratelimit_mw.admin.override_reach import check_reach
from ratelimit_mw.admin.override_set import Change, Edit, new_change, opened_set
from ratelimit_mw.admin.target import SettingsSource, Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.rules.override_entries import EVERYONE, Override

DAY: Final = 86_400.0  # seconds
State = Literal["off", "shadow", "on"]
NOTHING_LEFT: Final = "is left to undo"  # in the error of `undo` for a change that has ended or was changed again


class Overrides(Struct, frozen=True):
    """Overrides and switches of a store that have not ended, the oldest first."""

    overrides: Sequence[Override]


class Changes(Struct, frozen=True):
    """The changes of the last 30 days, at most 1,000, the latest first."""

    changes: Sequence[Change]


def set_override(
    settings: SettingsSource | Target,
    *,
    ip: str | None = None,
    user: str | None = None,
    headers: Headers = (),
    key: str | None = None,
    everyone: bool = False,
    rule: str | None = None,
    limits: str | None = None,
    exempt: bool = False,
    block: bool = False,
    duration: float = DAY,
    note: str = "",
    by: str = "",
) -> Override:
    """Give one client other limits, exempt it, or block it, for `duration` seconds. Return the override.

    It replaces one of the same client and rule. `ip`: an address or network. `user`, `headers`: as for `peek`, but one
    header. `key`: the client's key in the store, as `keys` and `top` show it. `rule`: None for all rules. `limits`: in
    place of all limits of the rule. `note`: why. `by`: who set it; by default the user and host of this process.
    `everyone`: instead of a client, all of those without an override of their own, with `limits` and a `rule`.
    """
    target, (note, by) = Target.of(settings), signature(note, by)
    action = action_of(limits, exempt=exempt, block=block)
    if everyone and (limits is None or rule is None or any((ip, user, headers, key))):
        raise ConfigError("override: everyone needs limits and a rule, and no client", code="RL-064")
    who = EVERYONE if everyone else who_of(ip, user, headers, key)
    until = time.time() + checked_duration(duration)
    rule = checked_rule(target, rule)
    if not everyone:
        check_reach(target, rule, who, action)
    override = Override("", rule, who, action, limits, until, note, by)
    change = new_change(f"{_what(override)} for {shown_duration(duration)}", note, by)
    override = replace(override, id=change.id)
    with opened_set(target) as kept:
        kept.edit(change, _replacing(override))
    return override


def _what(override: Override) -> str:
    """Return what an override does, for the log of changes."""
    action = f"limits {override.limits} for" if override.action == "limits" else override.action
    return f"{action} {override.who}" + ("" if override.rule is None else f" in {override.rule}")


def overrides(settings: SettingsSource | Target) -> Overrides:
    """Return the overrides and switches that have not ended, the oldest first."""
    with opened_set(Target.of(settings)) as kept:
        return Overrides(kept.entries)


def clear_override(
    settings: SettingsSource | Target,
    *,
    id: str | None = None,  # noqa: A002  # as in `Override`
    ip: str | None = None,
    user: str | None = None,
    headers: Headers = (),
    key: str | None = None,
    everything: bool = False,
    note: str = "",
    by: str = "",
) -> Overrides:
    """Clear one override, those of a client, or everything with all switches. Return what was cleared."""
    is_client = any((ip is not None, user is not None, bool(headers), key is not None))
    if (id is not None) + is_client + bool(everything) != 1:
        raise ConfigError("override: expected one of an id, a client, and everything", code="RL-064")
    who = who_of(ip, user, headers, key) if is_client else None
    note, by = signature(note, by)
    with opened_set(Target.of(settings)) as kept:
        if everything:
            return Overrides(kept.clear(new_change("clear everything", note, by)))
        cleared: Sequence[Override] = ()

        def edit(entries: Sequence[Override]) -> tuple[Sequence[Override], Sequence[Override]]:
            nonlocal cleared
            cleared = [one for one in entries if id in (one.id, None) and who in (one.who, None)]
            return (), cleared

        of_id = next((_what(one) for one in kept.entries if one.id == id), id)
        kept.edit(new_change(f"clear {of_id if who is None else who}", note, by), edit)
    return Overrides(cleared)


def switch(
    settings: SettingsSource | Target,
    state: State,
    *,
    rule: str | None = None,
    duration: float = DAY,
    note: str = "",
    by: str = "",
) -> Overrides:
    """Switch a rule, or all, `off` (nothing is charged or refused), to `shadow`, or `on` again, for everyone.

    Return the switches that are in force then. `rule`: None for all; then `on` also ends the switches of single rules.
    `duration`: seconds after which the rule is on again. Blocks stay.
    """
    if state not in get_args(State):
        raise ConfigError(f"switch: got {state!r}, expected off, shadow or on", code="RL-064")
    return switched(Target.of(settings), state, rule, duration, note, by)[0]


def switched(
    target: Target, state: State, rule: str | None, duration: float, note: str, by: str
) -> tuple[Overrides, Overrides]:
    """Do what `switch` does. Return the switches that are in force then, and those that have ended or been replaced."""
    rule, (note, by) = checked_rule(target, rule), signature(note, by)
    what = f"switch {state}" if rule is None else f"switch {state} {rule}"
    if state != "on":
        what = f"{what} for {shown_duration(checked_duration(duration))}"
    change, edit = new_change(what, note, by), _switching_on(rule)
    if state != "on":
        edit = _replacing(Override(change.id, rule, EVERYONE, state, None, time.time() + duration, note, by))
    ended: Sequence[Override] = ()

    def edit_and_keep(entries: Sequence[Override]) -> tuple[Sequence[Override], Sequence[Override]]:
        nonlocal ended
        added, ended = edit(entries)
        return added, ended

    with opened_set(target) as kept:
        entries = kept.edit(change, edit_and_keep)
    return Overrides([one for one in entries if one.who == EVERYONE]), Overrides(ended)


def changes(settings: SettingsSource | Target) -> Changes:
    """Return who changed what in the last 30 days, the latest first, at most 1,000 changes."""
    with opened_set(Target.of(settings)) as kept:
        records = kept.records
    undone = {record.undoes for record in records}
    return Changes([replace(record.change, undone=record.change.id in undone) for record in records])


def undo(
    settings: SettingsSource | Target,
    id: str,  # noqa: A002  # as in `Change`
    *,
    note: str = "",
    by: str = "",
) -> Change:
    """Undo a change: clear what it set, and set what it cleared or replaced, as far as it has not ended.

    Return the new change. What was changed again since then stays. Raises `ConfigError` if nothing is left to undo.
    """
    note, by = signature(note, by)
    with opened_set(Target.of(settings)) as kept:
        record = next((one for one in kept.records if one.change.id == id), None)
        if record is None:
            raise ConfigError(f"undo: got {id!r:.100}, expected the id of a change that `changes` shows", code="RL-064")
        added_ids = {one.id for one in record.added}

        def edit(entries: Sequence[Override]) -> tuple[Sequence[Override], Sequence[Override]]:
            removed, others = [], set()
            for one in entries:
                if one.id in added_ids:
                    removed.append(one)
                else:
                    others.add((one.who, one.rule))
            now = time.time()
            added = [one for one in record.removed if one.until > now and (one.who, one.rule) not in others]
            if not (added or removed):
                raise ConfigError(
                    f"undo: nothing of {id!r} {NOTHING_LEFT}, because it has ended or was changed again", code="RL-067"
                )
            return added, removed

        change = new_change(f"undo {record.change.what}", note, by)
        kept.edit(change, edit, id)
    return change


def _replacing(override: Override) -> Edit:
    def edit(entries: Sequence[Override]) -> tuple[Sequence[Override], Sequence[Override]]:
        return [override], [one for one in entries if (one.who, one.rule) == (override.who, override.rule)]

    return edit


def _switching_on(rule: str | None) -> Edit:
    def edit(entries: Sequence[Override]) -> tuple[Sequence[Override], Sequence[Override]]:
        return (), [one for one in entries if one.who == EVERYONE and rule in (None, one.rule)]

    return edit
