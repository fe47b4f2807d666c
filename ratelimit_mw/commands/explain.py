"""What applies to a request, in words. The rules and the plan are those that the middleware itself makes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import Answers
from ratelimit_mw.choices import Tiers, compile_limits
from ratelimit_mw.commands.hearing import Recorder, Said, answers_of, heard, recorded
from ratelimit_mw.limit import Charge, Limit
from ratelimit_mw.lines import Line, Lines
from ratelimit_mw.matching import Rules
from ratelimit_mw.paths import Forms
from ratelimit_mw.policy import Match, Plan, conclude, plan
from ratelimit_mw.request import Request
from ratelimit_mw.response import refusal
from ratelimit_mw.rules import Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.settle_options import Settling

_SHARED: Final = "missing="  # how the identity begins that all share whose key is not there
_OF_THE_TOP: Final = {
    "app": "app_limits, asked of every request",
    "default": "limits, the default ones",
    "preflight": "limits, in buckets of their own for CORS preflights",
}
_OF_MESSAGES: Final = "If it opens a websocket, limits of each message; "


def explain(settings: Settings, make: Callable[[], Request], warned: Sequence[str]) -> Iterator[str]:
    """What applies to the request that `make` makes, line by line. Asks the callables of the settings, not the store.

    `warned`: what the start warned of already.
    """
    request = make()
    said: Said = []
    with heard() as notes:
        shown = recorded(settings, said)
        match = Rules(shown).match(request)
        messages = match.messages if match and request.method == "GET" else None
        calls = [*(match.calls if match else ()), *(messages.calls if messages else ())]
        answers = answers_of(list(dict.fromkeys(calls)), request, said)
        asked = plan(match, request, answers) if match else None
        each = plan(messages, request, answers) if messages else None
    yield f"{request.method} {_path(request)} from {_client(request)}, user {request.user or 'nobody'}"
    yield ""
    if match is None or asked is None:
        yield f"Not limited: {_why_not(settings, make())}."
    else:
        yield from _applies(shown, match, asked, request, answers)
    if messages is not None and each is not None:
        yield from ("", *_messages(messages, each))
    if said:
        yield from ("", "Callables that were asked:", *columns(dict.fromkeys(said)))
    if notes := [note for note in notes if note not in warned]:
        yield from ("", "Logged on the way:", *(f"  {note}" for note in notes))


def columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns, the second one aligned."""
    found = list(rows)
    width = max((len(first) for first, _ in found), default=0)
    return [f"  {first:<{width}}  {second}" for first, second in found]


def _path(request: Request) -> str:
    forms = Forms.of(request.paths)
    others = dict.fromkeys(path for path in (*forms.received, *forms.normal) if path != request.path)
    return f"{request.path}, which is looked at as {' and '.join(others)} too," if others else request.path


def _client(request: Request) -> str:
    peer = request.raw["client"]
    named = request.client or "no address"
    return named if peer is None or peer[0] == request.client else f"{named}, whom {peer[0]} names"


def _why_not(settings: Settings, request: Request) -> str:
    if not settings.enabled:
        return "enabled = false switches everything off"
    with heard():
        without_paths = Rules(replace(settings, exempt=())).match(request)
    return "the client is on the safelist" if without_paths is None else "the path is exempt"


def _applies(settings: Settings, match: Match, asked: Plan, request: Request, answers: Answers) -> Iterator[str]:
    if not match.denied:
        yield "Rules that apply, in order:"
        yield from columns(_rules(settings, match, request, answers))
        yield ""
    if asked.denied:
        status = refusal(conclude(match, asked, ()), settings.headers).status
        yield f"Refused with {status}, and the store is not asked: {_why_denied(match, asked)}."
        return
    if not asked.charges:
        yield "No limit is asked."
    else:
        yield "Limits, asked in one step, all or none:"
    yield from _limits(asked)
    for line in match.lines(request, match.route, answers) or ():
        if not any(line is kept for kept in asked.lines):
            yield ""
            yield f"  {line.policy.name}: not asked, because its key, {line.key.text}, is not there (missing_key)"


def _why_denied(match: Match, asked: Plan) -> str:
    if match.denied:
        return "the client is on the blocklist"
    if asked.denied == "store":
        return "a key is not there, and missing_key = 'deny'"
    return "a callable gave no limits, and there are no others to put in their place"


def _rules(settings: Settings, match: Match, request: Request, answers: Answers) -> Iterator[tuple[str, str]]:
    names = [rule.full_name for rule in settings.compiled_rules()]
    for lines in match.groups:
        if lines.fixed == [] and lines.own is None and lines.rule == "app":
            continue
        facts = [_OF_THE_TOP.get(lines.rule, "")]
        if lines.own is not None:
            facts = [f"rules[{names.index(lines.rule)}]", *_facts(lines.own)]
        found = lines.of(request, match.route, answers)
        if lines.tier is not None:
            facts.append(_tier(settings, lines, request, match.route, answers))
        elif found is None:
            facts.append("its callable gave no limits, so the default ones apply")
        elif not found and "exempt" not in facts:
            facts.append("no limits")
        yield lines.rule, ", ".join(facts)


def _facts(rule: Rule) -> Iterator[str]:
    yield from (word for word in ("exempt", "shadow") if getattr(rule, word))
    if isinstance(rule.when, Recorder) and rule.when.failed:
        yield "its `when` failed, so it applies and the search goes on"
    elif rule.ends:
        yield "ends the search"


def _tier(settings: Settings, lines: Lines, request: Request, route: str, answers: Answers) -> str:
    """Which tier was chosen, and by what."""
    top = (settings.tier, settings.default_tier)
    field = "app_limits" if lines.rule == "app" else "limits"
    found = lines.own.limits_by(*top) if lines.own else compile_limits(field, getattr(settings, field), *top)
    if not isinstance(found, Tiers):
        return ""
    chosen = found.items(request, route, answers)
    name = next(name for name, items in found.all.items() if items is chosen)
    identity = found.key.identity(request, route, answers) or f"{found.key.text} is not there"
    return f"tier {name} ({identity})"


def _messages(match: Match, asked: Plan) -> Iterator[str]:
    if asked.denied:
        yield f"If it opens a websocket, the first message closes it: {_why_denied(match, asked)}."
    elif asked.charges:
        yield _OF_MESSAGES + ("a refused one closes it:" if match.closes else "a refused one is dropped:")
        yield from _limits(asked)


def _limits(asked: Plan) -> Iterator[str]:
    for number, (charge, line) in enumerate(zip(asked.charges, asked.lines, strict=True)):
        yield from ("",) * (number > 0)
        yield from _limit(charge, line)


def _limit(charge: Charge, line: Line) -> Iterator[str]:
    identity, _, rule = charge.key.removeprefix("{").rpartition("}:")
    limit = charge.limit
    yield f"  {line.policy.name}"
    kind = "penalty" if charge.role == "penalty" else "limit"
    rows = [(kind, limit.notation), ("rule", rule), ("key", line.key.text)]
    if identity.startswith(_SHARED):
        rows.append(("identity", f"{identity}, one bucket for all whose key is not there"))
    else:
        rows.append(("identity", identity))
    if kind == "limit":
        rows += [("cost", str(charge.cost)), ("at most", _worst(limit))]
    if line.queue:
        rows.append(("queue", f"{line.queue} wait for a slot in each process, {line.queue_timeout:g} s at most"))
    if line.policy.settling is not None:
        rows.append(("settled", _settled(line.policy.settling)))
    if line.shadow:
        rows.append(("shadow", "it is counted and reported, and never refuses"))
    yield from (f"  {row}" for row in columns(rows))


def _settled(own: Settling) -> str:
    says = [] if own.call is None else [f"{name_of(own.call)} says the true cost"]
    if own.counts is not None:
        says.append(f"only answers with these statuses are charged: {', '.join(map(str, sorted(own.counts)))}")
    return "; ".join(says)


def _worst(limit: Limit) -> str:
    window = f"{limit.window:.6f}".rstrip("0").rstrip(".")
    if limit.held:
        return f"{limit.quota} at work at once; a slot that nobody renews is free after {window} s"
    most = limit.worst_window
    return f"{most} in any {window} s" if most is not None else "not known, its algorithm does not say"
