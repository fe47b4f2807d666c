"""The commands `peek`, `reset`, `keys`, `top`, `tail` and others, for `python -m ratelimit_mw`, Flask and Django."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.admin import DEFAULT_MOST, Buckets, Clients, forget, most_refused
from ratelimit_mw.admin.buckets import Bucket, RequestBuckets, find_buckets, look, split_key
from ratelimit_mw.admin.in_force import overrides_in_force
from ratelimit_mw.admin.listing import Listing, inventory_of
from ratelimit_mw.admin.output import (
    BUCKET_HEADING,
    REFUSAL_HEADING,
    CommandParser,
    bucket_row,
    confirmed,
    json_text,
    refusal_row,
    table,
    write_line,
)
from ratelimit_mw.admin.override_arguments import who_of
from ratelimit_mw.admin.override_commands import Run, add_override_commands, applied_lines
from ratelimit_mw.admin.target import DescribedRequest, Target
from ratelimit_mw.core.errors import ConfigError, RateLimitError, StoreError
from ratelimit_mw.core.identity import rule_spellings
from ratelimit_mw.core.limit import Role
from ratelimit_mw.core.log import printable
from ratelimit_mw.core.progress import ProgressBar
from ratelimit_mw.http.callables import import_from_working_folder
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.inventory import KEPT_SECONDS, NumberedRefusal

UNAVAILABLE: Final = 2  # exit code: the store gives no answer, or is in the memory of another process
_FAILED: Final = 1
_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_MAX_ERROR: Final = 2000  # characters of a mistake
_FIRST_REFUSALS: Final = 10  # refusals with which `tail` begins
_PER_CALL: Final = 500  # refusals
_POLL_INTERVAL: Final = 1.0  # seconds, as often as a process reports
_DURATION: Final = re.compile(r"([0-9]{1,9})(s|m|min|h)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600}
_DENY_CACHE: Final = "processes that remember a refusal follow within deny_cache, 1 s by default"
_FROM_FILE: Final = (
    "limits that are attached to endpoints are not in a settings file: `keys` lists their buckets, `reset --key` "
    "forgets them, and `--app MODULE:APP`, `flask ratelimit` and `manage.py ratelimit` find them"
)
_ELSEWHERE: Final = "limits with a store of their own are not shown: {}"

_NOT_KEPT: Final = (
    "the settings do not have remember_refused, so no refusals are kept; `keys --limited` lists the buckets that "
    "refuse a request now"
)
_UNREAD: Final = "buckets that stay, because the settings do not have their limits"

OpenTarget = Callable[[argparse.Namespace], Target]


def add_commands(commands: Any, open_target: OpenTarget, *, has_file: bool) -> None:
    """Add the commands to a parser. `has_file`: the first argument names the settings' file."""

    def add(commands: Any, name: str, about: str, run: Run) -> Any:
        parser = commands.add_parser(name, help=about, description=about)
        if has_file:
            parser.add_argument("file", nargs="?", help="a TOML file, or one that ends in .json")
            about_app = "the ASGI app whose limits are meant, or a function that returns the app"
            parser.add_argument("--app", metavar="MODULE:APP", help=about_app)
            parser.add_argument("--app-dir", metavar="FOLDER", help="has the app's module; default: the current one")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=partial(_run, run, open_target))
        return parser

    parser = add(commands, "peek", "show what is left in the buckets of a request; changes nothing", _peek)
    _add_request(parser, parser, is_required=True)
    parser = add(
        commands, "reset", "forget the buckets of a request, a key or all, so that clients are admitted again", _reset
    )
    either = parser.add_mutually_exclusive_group(required=True)
    _add_request(parser, either, is_required=False)
    _add_key(parser, either)
    either.add_argument("--all", action="store_true", help="all buckets of the store; with --rule, of one rule")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser = add(commands, "keys", "list the buckets of the store, at a fifth of its server's time at most", _keys)
    parser.add_argument("--limited", action="store_true", help="only buckets that would refuse a request now")
    _add_key(parser, parser)
    parser.add_argument("--most", type=_positive, metavar="N", help="stop after N buckets")
    parser = add(commands, "top", "show who was refused most; needs the setting remember_refused", _top)
    parser.add_argument("--since", type=_seconds, default=KEPT_SECONDS, metavar="10m", help="s, m or h; at most 1h")
    parser.add_argument("--most", type=_positive, default=DEFAULT_MOST, metavar="N", help="default: %(default)s")
    parser = add(commands, "tail", "show refusals as they happen; needs the setting remember_refused", _tail)
    parser.add_argument("--rule", metavar="NAME", help="only refusals by this rule; `login` also finds `@login`")
    parser.add_argument("--most", type=_positive, metavar="N", help="stop after N refusals")
    add_override_commands(commands, add)


def run_commands(
    program: str, words: Sequence[str], open_target: OpenTarget, add: Callable[[Any], object] = lambda _: None
) -> int:
    """Run the command with these arguments, and return its exit code.

    `program`: the start of the command line. `add`: adds commands of a framework to the parser.
    """
    parser = CommandParser(prog=program, description="Show who is limited, let them in again, and change limits.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add(commands)
    add_commands(commands, open_target, has_file=False)
    args = parser.parse_args(words)
    return int(args.run(args))


def _add_request(parser: Any, group: Any, *, is_required: bool) -> None:
    """Add the words that describe a request. `group`: of the parser, has the first one."""
    group.add_argument("--request", required=is_required, metavar="'POST /login'", help="method and path")
    parser.add_argument("--ip", help="address of the client, or of the proxy before it; '' for none")
    parser.add_argument("--user", help="name or id of the logged-in user")
    parser.add_argument("--host", help="the same as --header 'Host: ...'")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")


def _add_key(parser: Any, group: Any) -> None:
    """Add the words that choose buckets by the names in their keys. `group`: of the parser, has the first one."""
    group.add_argument("--key", help="a client's key in the store, as `keys`, `top` and `tail` print it; its buckets")
    parser.add_argument("--rule", metavar="NAME", help="only buckets of this rule; `login` also finds `@login`")


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= KEPT_SECONDS:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a time such as 10m, up to 1h: refusals are kept for 1h"
        )
    return seconds


def _run(run: Run, open_target: OpenTarget, args: argparse.Namespace) -> int:
    """Run a command and return its exit code: 2 if the store gives no answer, 1 for any other error."""
    import_from_working_folder()
    try:
        return run(args, open_target(args))
    except StoreError as error:
        return _fail(error, UNAVAILABLE)
    except RateLimitError as error:
        return _fail(error, _FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _fail(error: RateLimitError, code: int) -> int:
    lines = str(error).split("\n")
    print("ratelimit_mw: " + "\n".join(printable(line, _MAX_ERROR) for line in lines), file=sys.stderr)
    return code


def _described(args: argparse.Namespace) -> DescribedRequest:
    return DescribedRequest(args.request, args.ip, args.user, args.header, args.host)


def _peek(args: argparse.Namespace, target: Target) -> int:
    described = _described(args)
    with target.open_store() as store:
        overrides = overrides_in_force(target, store)
        found = find_buckets(target, described, overrides, need_all=False)
        buckets = look(store, found.charges)
    _show(found, Buckets(buckets, overrides=found.overrides), as_json=args.json)
    _mention_absent(args, found, buckets)
    exemptions = [one for one in overrides.entries if one.action == "exempt" and one.who in _descriptions(args)]
    for message in () if args.json else found.uncovered(buckets, exemptions):
        print(printable(message, _MAX_ERROR), file=sys.stderr)
    _mention_endpoints(args, target)
    return _fail(ConfigError(*found.missing), _FAILED) if found.missing else 0


def _descriptions(args: argparse.Namespace) -> Iterable[str]:
    """Return the clients of overrides that the described request may meet."""
    given = [(args.ip, None, ()), (None, args.user, ()), *((None, None, [line]) for line in args.header)]
    return [who_of(*one, None) for one in given if any(one)]


def _reset(args: argparse.Namespace, target: Target) -> int:
    _check_words(args)
    if args.all:
        return _reset_all(args, target)
    described = None if args.key is not None else _described(args)
    with target.open_store() as store:
        if described is None:
            found = _buckets_of_key(target, store, args)
        else:
            found = find_buckets(target, described, overrides_in_force(target, store), with_originals=True)
        before = look(store, found.charges)
        if any(bucket.exists for bucket in before) and not args.yes and not _confirmed(found, before):
            return _FAILED
        done = replace(forget(store, found.charges, before), overrides=found.overrides)
    if args.json or not done.buckets:
        _show(found, done, as_json=args.json)
    else:
        _write_forgotten(done.forgotten)
    if described is not None:
        _mention_absent(args, found, before)
        _mention_endpoints(args, target)
    return 0


def _reset_all(args: argparse.Namespace, target: Target) -> int:
    of_rule = "" if args.rule is None else f" of the rule {printable(args.rule)}"
    with target.open_store() as store:
        show = partial(write_line, f"all buckets{of_rule}, of all clients")
        if not args.yes and not confirmed("reset", "to forget the buckets", show, "Forget what is counted there?"):
            return _FAILED
        listing = Listing(target, store, rule=args.rule)
        forgotten = listing.forget()
        if args.json:
            write_line(json_text({"forgotten": forgotten}))
        else:
            _write_forgotten(forgotten)
        if listing.unread:
            print(f"{_UNREAD}: {listing.unread}", file=sys.stderr)
        if args.rule is not None and not forgotten:
            _mention_rules(args.rule, target, listing.rules, "the store's keys")
    return 0


def _write_forgotten(count: int | None) -> None:
    write_line(f"{count} {'bucket' if count == 1 else 'buckets'} forgotten; {_DENY_CACHE}")


def _mention_absent(args: argparse.Namespace, found: RequestBuckets, buckets: Sequence[Bucket]) -> None:
    """If a person reads the output, print which callables found no key, and for which clients nothing is counted.

    Also, which limits count elsewhere.
    """
    elsewhere = [_ELSEWHERE.format(", ".join(found.elsewhere))] if found.elsewhere else []
    for message in () if args.json else (*found.unanswered, *found.absent(buckets), *elsewhere):
        print(printable(message, _MAX_ERROR), file=sys.stderr)


def _check_words(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for words that have no effect together."""
    if args.request is not None and args.rule is not None:
        raise ConfigError("--rule: present without --key or --all, whose buckets of this rule to forget", code="RL-051")
    if args.request is None and any((args.ip, args.user, args.host, args.header)):
        given = "--all: names all clients" if args.all else "--key: names the client"
        raise ConfigError(f"{given}, expected no --ip, --user, --host or --header beside it", code="RL-051")


def _buckets_of_key(target: Target, store: Store, args: argparse.Namespace) -> RequestBuckets:
    """Return the buckets of a key in the store. Prints how many of them cannot be read."""
    listing = Listing(target, store, key=args.key, rule=args.rule)
    charges = listing.charges()
    if listing.unread:
        print(f"{_UNREAD}: {listing.unread}", file=sys.stderr)
    if args.rule is not None and not charges:
        _mention_rules(args.rule, target, listing.rules, "the buckets of this key")
    words = "key and rule" if args.rule is not None else "key"
    names = [split_key(charge.key)[1] for charge in charges]
    roles: list[Role] = ["limit"] * len(names)  # a key does not say whether its rule is in shadow
    return RequestBuckets(charges, names, roles, f"the store has no bucket of this {words}")


def _mention_endpoints(args: argparse.Namespace, target: Target) -> None:
    """If the settings come from a file and a person reads the output, print that limits on endpoints are not shown."""
    if target.find_steps is None and not args.json:
        print(_FROM_FILE, file=sys.stderr)


def _confirmed(found: RequestBuckets, buckets: list[Bucket]) -> bool:
    """Ask the user whether to forget these buckets. Raises `ConfigError` without a terminal."""
    show = partial(_show, found, Buckets(buckets), as_json=False)
    return confirmed("reset", "to forget the buckets", show, "Forget what is counted there?")


def _show(found: RequestBuckets, answer: Buckets, *, as_json: bool) -> None:
    if as_json:
        write_line(json_text(answer))
        return
    _write(applied_lines(answer.overrides))
    if not answer.buckets:
        write_line(found.reason)
    else:
        # the units that `smooth` has left depend on its rate, not on its quota
        totals = ["" if charge.limit.borrows else f" of {charge.limit.most}" for charge in found.charges]
        _write(table(map(bucket_row, answer.buckets, found.names, totals, found.roles)))


def _keys(args: argparse.Namespace, target: Target) -> int:
    with target.open_store() as store:
        listing = Listing(target, store, limited=args.limited, key=args.key, rule=args.rule)
        buckets = islice(listing, args.most)
        if args.json:
            _write_keys_as_json(listing, buckets)
        else:
            bar = ProgressBar(lambda rate: f"{rate:,.0f} keys/s")
            listing.on_progress = lambda: bar.show(listing.seen, 1, listing.read)
            for line in table(map(bucket_row, buckets), BUCKET_HEADING):
                bar.clear()
                write_line(line)
            bar.clear()
            note = f"{100 * listing.seen:.1f} % of the store's keys were read"
            unread = f"; {listing.unread} belong to limits that the settings do not have" if listing.unread else ""
            print(note + unread, file=sys.stderr)
            if args.rule is not None and listing.seen == 1:
                _mention_rules(args.rule, target, listing.rules, "the store's keys")
    return 0


def _write_keys_as_json(listing: Listing, buckets: Iterable[Bucket]) -> None:
    """Write a `Keys` object, one bucket per line, without keeping the buckets in memory."""
    separator = '{"keys": ['
    for bucket in buckets:
        write_line(separator + json_text(bucket))
        separator = ","
    if separator != ",":
        write_line(separator)
    write_line(f'], "seen": {round(listing.seen, 4)}}}')


def _top(args: argparse.Namespace, target: Target) -> int:
    clients = most_refused(target, args.since, args.most)
    if args.json:
        write_line(json_text(Clients(clients)))
        return 0
    rows = ((str(client.refused), client.rule, client.key) for client in clients)
    _write(table(rows, ("refused", "rule", "key")))
    if clients:
        hint = "the keys are those of peek: describe a client to peek, and compare"
    elif target.settings.remember_refused:
        hint = "no client was refused"
    else:
        hint = _NOT_KEPT
    print(hint, file=sys.stderr)
    return 0


def _tail(args: argparse.Namespace, target: Target) -> int:
    """Print refusals until the command is interrupted, or `--most` of them were printed."""
    left, is_first = args.most, not args.json
    with target.open_store() as store:
        inventory = inventory_of(store)
        after, some = None, inventory.latest_refusals(None, _FIRST_REFUSALS)
        if not (some or target.settings.remember_refused):
            print(_NOT_KEPT, file=sys.stderr)
            return _FAILED
        if args.rule is not None:
            rules = {split_key(one.refusal.key)[1] for one in some}
            _mention_rules(args.rule, target, rules, "the latest refusals")
        while True:
            after = some[-1].number if some else after
            for one in sorted(some, key=lambda one: one.refusal.at):  # processes report in turns, each its last second
                if args.rule is not None and args.rule not in rule_spellings(split_key(one.refusal.key)[1]):
                    continue
                if is_first:
                    write_line(REFUSAL_HEADING)
                    is_first = False
                write_line(_refusal_text(one, as_json=args.json))
                left = None if left is None else left - 1
                if left == 0:
                    return 0
            if len(some) < _PER_CALL:
                time.sleep(_POLL_INTERVAL)
            some = inventory.latest_refusals(after, _PER_CALL) if after else inventory.latest_refusals(None, _PER_CALL)


def _mention_rules(name: str, target: Target, more: Iterable[str], place: str) -> None:
    """If no known rule has this name, print the known names. `more`: those of `place`, which may lack some."""
    limit_sets = target.rules.all_limit_sets
    known = {limit_set.bucket_name for limit_set in limit_sets if limit_set.known_limits or limit_set.callables}
    known.update(more)
    if not any(name in rule_spellings(rule) for rule in known):
        names = ", ".join(map(printable, sorted(known))) or "none"
        print(f"no rule {printable(name)} in the settings and {place}; they have {names}", file=sys.stderr)


def _refusal_text(one: NumberedRefusal, *, as_json: bool) -> str:
    if not as_json:
        return next(table([refusal_row(one.refusal)]))
    identity, rule = split_key(one.refusal.key)
    refusal = one.refusal
    values = {"at": refusal.at, "rule": rule, "limit": refusal.limit, "key": identity}
    return json_text({**values, "retry_after": refusal.retry_after})


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(line)
