"""Explains which limits apply to a request. It uses the same rules and the same plan as the middleware."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.cli.recording import (
    CallLog,
    RecordedCallable,
    capture_warnings,
    evaluate_callables,
    with_recording,
)
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.http.callables import CallResults
from ratelimit_mw.http.paths import Forms
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import refusal
from ratelimit_mw.rules.compiled import CompiledLimit, LimitSet
from ratelimit_mw.rules.plan import Match, Plan, conclude, plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.features import SettlePolicy
from ratelimit_mw.settings.limits import TieredLimits, compile_limits
from ratelimit_mw.settings.rule import Rule

_SHARED: Final = "missing="  # prefix of the identity that all requests without a key share
_GLOBAL_LIMITS: Final = {
    "app": "app_limits, for every request",
    "default": "limits, used by default",
    "preflight": "limits, in separate buckets for CORS preflights",
}
_MESSAGE_LIMITS: Final = "If it opens a websocket, limits for each message; "


def explain(settings: Settings, make_request: Callable[[], Request], warnings: Sequence[str]) -> Iterator[str]:
    """Yield an explanation of the limits that apply to the request of `make_request`, line by line.

    Calls the callables of the settings, but does not query the store. `warnings`: warnings of the start, which are not
    repeated.
    """
    request = make_request()
    call_log: CallLog = []
    with capture_warnings() as notes:
        recording_settings = with_recording(settings, call_log)
        match = RuleSet(recording_settings).match(request)
        messages = match.messages if match and request.method == "GET" else None
        calls = [*(match.callables if match else ()), *(messages.callables if messages else ())]
        answers = evaluate_callables(list(dict.fromkeys(calls)), request, call_log)
        asked = plan(match, request, answers) if match else None
        message_plan = plan(messages, request, answers) if messages else None
    user = f"user {request.user}" if request.user else "no user"
    yield f"{request.method} {_path(request)} from {_client(request)}, {user}"
    yield ""
    if match is None or asked is None:
        yield f"Not limited: {_why_not(settings, make_request())}."
    else:
        yield from _applies(recording_settings, match, asked, request, answers)
    if messages is not None and message_plan is not None:
        yield from ("", *_messages(messages, message_plan))
    if call_log:
        yield from ("", "Results of callables:", *columns(dict.fromkeys(call_log)))
    if notes := [note for note in notes if note not in warnings]:
        yield from ("", "Log messages:", *(f"  {note}" for note in notes))


def columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Format rows as two aligned columns."""
    found = list(rows)
    width = max((len(first) for first, _ in found), default=0)
    return [f"  {first:<{width}}  {second}" for first, second in found]


def _path(request: Request) -> str:
    forms = Forms.of(request.paths)
    others = dict.fromkeys(path for path in (*forms.received, *forms.normal) if path != request.path)
    return f"{request.path}, also matched as {' and '.join(others)}," if others else request.path


def _client(request: Request) -> str:
    peer = request.raw["client"]
    named = request.client or "no address"
    return named if peer is None or peer[0] == request.client else f"{named} (forwarded by {peer[0]})"


def _why_not(settings: Settings, request: Request) -> str:
    if not settings.enabled:
        return "enabled = false switches everything off"
    with capture_warnings():
        without_paths = RuleSet(replace(settings, exempt=())).match(request)
    return "the client is on the safelist" if without_paths is None else "the path is exempt"


def _applies(settings: Settings, match: Match, asked: Plan, request: Request, answers: CallResults) -> Iterator[str]:
    if not match.denied:
        yield "Rules that apply, in order:"
        yield from columns(_rules(settings, match, request, answers))
        yield ""
    if asked.denied:
        status = refusal(conclude(match, asked, ()), settings.headers).status
        yield f"Refused with {status}, without querying the store: {_why_denied(match, asked)}."
        return
    if not asked.charges:
        yield "No limit applies."
    else:
        yield "Limits, charged in one step, all or none:"
    yield from _limits(asked)
    for line in match.limits_for(request, match.route, answers) or ():
        if not any(line is planned for planned in asked.compiled_limits):
            yield ""
            yield f"  {line.policy.name}: skipped, because its key, {line.key.text}, is missing (missing_key)"


def _why_denied(match: Match, asked: Plan) -> str:
    if match.denied:
        return "the client is on the blocklist"
    if asked.denied == "store":
        return "a key is missing, and missing_key = 'deny'"
    return "a callable returned no limits, and there are no others to use instead"


def _rules(settings: Settings, match: Match, request: Request, answers: CallResults) -> Iterator[tuple[str, str]]:
    names = [rule.full_name for rule in settings.compiled_rules()]
    for lines in match.groups:
        if lines.static_limits == [] and lines.own is None and lines.rule == "app":
            continue
        facts = [_GLOBAL_LIMITS.get(lines.rule, "")]
        if lines.own is not None:
            facts = [f"rules[{names.index(lines.rule)}]", *_facts(lines.own)]
        found = lines.limits_for(request, match.route, answers)
        if lines.tier is not None:
            facts.append(_tier(settings, lines, request, match.route, answers))
        elif found is None:
            facts.append("its callable returned no limits, so the default limits apply")
        elif not found and "exempt" not in facts:
            facts.append("no limits")
        yield lines.rule, ", ".join(facts)


def _facts(rule: Rule) -> Iterator[str]:
    yield from (word for word in ("exempt", "shadow") if getattr(rule, word))
    if isinstance(rule.when, RecordedCallable) and rule.when.failed:
        yield "its `when` failed, so it applies and the search continues"
    elif rule.is_final:
        yield "ends the search"


def _tier(settings: Settings, lines: LimitSet, request: Request, route: str, answers: CallResults) -> str:
    """Describe which tier was selected, and by which identity."""
    top = (settings.tier, settings.default_tier)
    field = "app_limits" if lines.rule == "app" else "limits"
    found = lines.own.resolve_limits(*top) if lines.own else compile_limits(field, getattr(settings, field), *top)
    if not isinstance(found, TieredLimits):
        return ""
    chosen = found.select(request, route, answers)
    name = next(name for name, items in found.all.items() if items is chosen)
    identity = found.key.identity(request, route, answers) or f"{found.key.text} is missing"
    return f"tier {name} ({identity})"


def _messages(match: Match, asked: Plan) -> Iterator[str]:
    if asked.denied:
        yield f"If it opens a websocket, the first message closes it: {_why_denied(match, asked)}."
    elif asked.charges:
        yield _MESSAGE_LIMITS + ("a refused message closes it:" if match.closes else "a refused message is dropped:")
        yield from _limits(asked)


def _limits(asked: Plan) -> Iterator[str]:
    for number, (charge, line) in enumerate(zip(asked.charges, asked.compiled_limits, strict=True)):
        yield from ("",) * (number > 0)
        yield from _limit(charge, line)


def _limit(charge: Charge, line: CompiledLimit) -> Iterator[str]:
    identity, _, rule = charge.key.removeprefix("{").rpartition("}:")
    limit = charge.limit
    yield f"  {line.policy.name}"
    kind = "penalty" if charge.role == "penalty" else "limit"
    rows = [(kind, limit.notation), ("rule", rule), ("key", line.key.text)]
    if identity.startswith(_SHARED):
        rows.append(("identity", f"{identity}, one bucket for all requests without a key"))
    else:
        rows.append(("identity", identity))
    if kind == "limit":
        rows += [("cost", str(charge.cost)), ("at most", _at_most(limit))]
    if line.queue:
        rows.append(("queue", f"{line.queue} requests in each process, each for at most {line.queue_timeout:g} s"))
    if line.policy.settle_policy is not None:
        rows.append(("settled", _settlement(line.policy.settle_policy)))
    if line.shadow:
        rows.append(("shadow", "counted and reported, but never refuses"))
    yield from (f"  {row}" for row in columns(rows))


def _settlement(own: SettlePolicy) -> str:
    clauses = [] if own.call is None else [f"{callable_name(own.call)} returns the actual cost"]
    if own.counted_statuses is not None:
        clauses.append(
            f"only responses with these statuses are charged: {', '.join(map(str, sorted(own.counted_statuses)))}"
        )
    return "; ".join(clauses)


def _at_most(limit: Limit) -> str:
    window = f"{limit.window:.6f}".rstrip("0").rstrip(".")
    if limit.is_concurrency:
        return f"{limit.quota} requests in progress; a slot that is not renewed is free after {window} s"
    most = limit.max_per_window
    return f"{most} in any {window} s" if most is not None else "unknown for its algorithm"
