"""The commands `override`, `switch` and `changes`, which change what an app limits while it runs."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from ratelimit_mw.admin.changing import (
    DAY,
    Changes,
    Overrides,
    changes,
    clear_override,
    overrides,
    set_override,
    switched,
    undo,
)
from ratelimit_mw.admin.output import confirmed, json_text, local_time, rest_until, table, write_line, write_note
from ratelimit_mw.admin.override_reach import unknown_user, wider_network
from ratelimit_mw.admin.override_set import Change
from ratelimit_mw.admin.target import Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.rules.override_entries import EVERYONE, MAX_DURATION, Override

Run = Callable[[argparse.Namespace, Target], int]
Add = Callable[[Any, str, str, Run], Any]  # adds a command to a parser's commands: its name, description and function

_DURATION: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_STATES: Final = ("off", "shadow", "on")
_NOTHING_DONE: Final = 1  # exit code
_EFFECT: Final = "to clear all overrides and switches"
_ABOUT: Final = "give one client other limits, exempt or block it, for a time"
_FOREIGN_CLEARED: Final = (
    "cleared a set with a MAC of another key_secret, or none, which these settings cannot show; if the app applied it, "
    "set it again with the app's settings"
)
_NEVER: Final = "the settings have refresh = 0, so no process looks at overrides and switches: they have no effect"
_LIFTED: Final = {"off": "off for everyone", "shadow": "shadow for everyone", "block": "blocked"}


def add_override_commands(commands: Any, add: Add) -> None:
    """Add the commands to a parser."""
    inner = commands.add_parser("override", help=_ABOUT, description=_ABOUT).add_subparsers(
        required=True, metavar="COMMAND"
    )
    parser = add(inner, "set", _ABOUT, _set)
    _add_client(parser)
    parser.add_argument("--rule", metavar="NAME", help="only in this rule; a limit on an endpoint begins with @")
    parser.add_argument("--limits", metavar="1000/minute", help="in place of all limits of the rule")
    parser.add_argument("--exempt", action="store_true", help="charge and refuse nothing")
    parser.add_argument("--block", action="store_true", help="refuse with the status of the blocklist, 403")
    _add_duration(parser)
    _add_signature(parser)
    add(inner, "list", "list the overrides and switches that have not ended", _list)
    parser = add(inner, "clear", "end overrides before their time", _clear)
    parser.add_argument("--id", help="of an override or a switch, as `override list` shows it")
    _add_client(parser)
    parser.add_argument("--all", action="store_true", help="all overrides and switches")
    parser.add_argument("--yes", action="store_true", help="do not ask before --all")
    _add_signature(parser)

    parser = add(commands, "switch", "switch a rule, or all, off or to shadow for everyone, or on again", _switch)
    parser.add_argument(
        "state", metavar="off|shadow|on", type=_state, help="off: nothing is charged; shadow: nothing is refused"
    )
    parser.add_argument("--rule", metavar="NAME", help="only this rule; a limit on an endpoint begins with @")
    _add_duration(parser)
    _add_signature(parser)

    parser = add(commands, "changes", "show who changed what in the last 30 days, and undo a change", _changes)
    parser.add_argument("--undo", metavar="ID", help="undo this change")
    _add_signature(parser)


def _add_client(parser: Any) -> None:
    parser.add_argument("--ip", help="address of the client, or a network such as 192.0.2.0/24")
    parser.add_argument("--user", help="name or id of the logged-in user")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="by which a rule counts")
    parser.add_argument("--key", help="the client's key in the store, as `peek`, `keys` and `top` print it")


def _add_duration(parser: Any) -> None:
    parser.add_argument("--for", dest="duration", metavar="1h", help="s, m, h or d; 1d")


def _add_signature(parser: Any) -> None:
    parser.add_argument("--note", default="", help="why; `changes` shows it")
    parser.add_argument("--by", default="", help="who makes the change; default: user@host")


def _duration(args: argparse.Namespace) -> float:
    """Return the seconds of `--for`. Not argparse's error, whose usage would hide it."""
    if args.duration is None:
        return DAY
    found = _DURATION.fullmatch(args.duration)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MAX_DURATION:
        raise ConfigError(
            f"--for: got {args.duration!r:.100}, expected a time such as 30s, 15m, 2h or 1d, up to 366d", code="RL-064"
        )
    return float(seconds)


def _state(text: str) -> str:
    if text not in _STATES:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected off, shadow or on, directly after the settings")
    return text


def _check_one(named: str, given: Sequence[str], options: Sequence[str]) -> None:
    """Raise `ConfigError` unless exactly one of some options is given."""
    if len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        expected = f"{', '.join(options[:-1])} and {options[-1]}"
        raise ConfigError(f"{named}: got {found}, expected one of {expected}", code="RL-064")


def _client(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that describe a client."""
    return {"ip": args.ip, "user": args.user, "headers": args.header, "key": args.key}


def _clients_given(args: argparse.Namespace) -> list[str]:
    given = {"--ip": args.ip, "--user": args.user, "--header": args.header or None, "--key": args.key}
    return [option for option, value in given.items() if value is not None]


def _set(args: argparse.Namespace, target: Target) -> int:
    actions = {"--limits": args.limits is not None, "--exempt": args.exempt, "--block": args.block}
    _check_one("override set", [option for option, is_given in actions.items() if is_given], list(actions))
    _check_one("override set", _clients_given(args), ["--ip", "--user", "--header", "--key"])
    what: dict[str, Any] = {"rule": args.rule, "limits": args.limits, "exempt": args.exempt, "block": args.block}
    override = set_override(target, **_client(args), **what, duration=_duration(args), note=args.note, by=args.by)
    _show([override], as_json=args.json)
    for note in () if args.json else (wider_network(target, override), unknown_user(target, override)):
        if note is not None:
            write_note(note)
    _mention_end(args)
    _mention_delay(args, target)
    return 0


def _list(args: argparse.Namespace, target: Target) -> int:
    found = overrides(target).overrides
    _show(found, as_json=args.json)
    if not (args.json or found):
        write_note("there are no overrides and no switches")
    _mention_never(args, target)
    return 0


def _clear(args: argparse.Namespace, target: Target) -> int:
    given = ["--id"] * (args.id is not None) + _clients_given(args) + ["--all"] * args.all
    _check_one("override clear", given, ["--id", "--ip", "--user", "--header", "--key", "--all"])
    if args.all and not args.yes and not _confirms_clearing(target):
        return _NOTHING_DONE
    was_foreign = args.all and _is_foreign(target)
    cleared = clear_override(
        target, id=args.id, **_client(args), everything=args.all, note=args.note, by=args.by
    ).overrides
    _show(cleared, as_json=args.json)
    if not args.json and was_foreign:
        write_note(_FOREIGN_CLEARED)
    elif not args.json:
        write_note(f"{len(cleared)} cleared" if cleared else "nothing cleared: `override list` shows what there is")
    if not (cleared or was_foreign):
        return _NOTHING_DONE
    _mention_delay(args, target)
    return 0


def _is_foreign(target: Target) -> bool:
    """Return whether the entries in the store cannot be read, as with a MAC of another secret."""
    try:
        overrides(target)
    except ConfigError:
        return True
    return False


def _confirms_clearing(target: Target) -> bool:
    """Show what `--all` clears, and ask for it. Entries without the right MAC, which it clears too, are not shown."""
    try:
        found = overrides(target).overrides
    except ConfigError as error:
        show = partial(write_note, str(error))
        return confirmed("override clear", _EFFECT, show, "Clear everything?")
    show = partial(_show, found, as_json=False)
    return not found or confirmed("override clear", _EFFECT, show, "Clear these overrides and switches?")


def _switch(args: argparse.Namespace, target: Target) -> int:
    in_force, ended = switched(target, args.state, args.rule, _duration(args), args.note, args.by)
    _show(in_force.overrides, as_json=args.json)
    if not (args.json or in_force.overrides):
        write_line("all rules are on")
    if args.state == "on" and not ended.overrides:
        if not args.json:
            write_note("nothing ended: no switch was in force" + ("" if args.rule is None else " for this rule alone"))
        return _NOTHING_DONE
    if args.state != "on":
        _mention_end(args)
    _mention_delay(args, target)
    return 0


def _changes(args: argparse.Namespace, target: Target) -> int:
    if args.undo is None and (args.note or args.by):
        option = "--note" if args.note else "--by"
        raise ConfigError(f"{option}: present without --undo, expected a change to undo", code="RL-064")
    found = changes(target).changes if args.undo is None else [undo(target, args.undo, note=args.note, by=args.by)]
    if args.json:
        write_line(json_text(Changes(found)))
    else:
        _write(table(map(_change_row, found)))
    if args.undo is not None:
        _mention_delay(args, target)
    return 0


def _show(found: Sequence[Override], *, as_json: bool) -> None:
    if as_json:
        write_line(json_text(Overrides(found)))
    else:
        _write(table(map(_override_row, found)))


def _override_row(one: Override) -> Sequence[str]:
    rule = "all rules" if one.rule is None else one.rule
    until = f"until {local_time(one.until)} ({rest_until(one.until)})"
    return one.id, one.who, rule, one.limits or one.action, until, one.by, one.note


def _change_row(one: Change) -> Sequence[str]:
    return one.id, local_time(one.at), one.by, f"{one.what} (undone)" if one.undone else one.what, one.note


def applied_lines(applied: Iterable[Override]) -> Iterable[str]:
    """Return a line for each override or switch that applies to a described request."""
    for one in applied:
        action = one.limits or _LIFTED.get(one.action, one.action)
        clients = [] if one.who == EVERYONE else [one.who]
        rule = [] if one.rule is None else [f"rule {one.rule}"]
        details = "; ".join([rest_until(one.until), *clients, *rule, *filter(None, [one.note])])
        yield f"override {one.id}: {action} until {local_time(one.until)} ({details})"


def _mention_end(args: argparse.Namespace) -> None:
    """If a person reads the output, print when a change without `--for` ends."""
    if args.duration is None and not args.json:
        write_note("without --for, it ends after a day")


def _mention_delay(args: argparse.Namespace, target: Target) -> None:
    """If a person reads the output, print when the app's processes follow."""
    if not args.json and target.settings.refresh:
        write_note(f"each process follows after its next request, within refresh, {target.settings.refresh:g} s")
    _mention_never(args, target)


def _mention_never(args: argparse.Namespace, target: Target) -> None:
    if not args.json and not target.settings.refresh:
        write_note(_NEVER)


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(line)
