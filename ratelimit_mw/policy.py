"""What applies to a request and what it is asked: match, plan, conclude. Pure: no store, no clock, no I/O."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from ratelimit_mw.identity import bucket_key, encode
from ratelimit_mw.keys import Answers, Call, Caller, Key
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import logger, warn_rarely
from ratelimit_mw.paths import Paths, normal_path
from ratelimit_mw.request import Request
from ratelimit_mw.rules import Item, OnStoreError, Rule, compile_items
from ratelimit_mw.settings import MissingKey, Settings
from ratelimit_mw.verdict import Policy, Source, Verdict, verdict_of

_SHORT: Final = 256  # characters of a user or client of whom a plan is remembered
_REMEMBERED: Final = 4096  # charges of recent clients per limit: made once, they cost a look-up instead of a hash


class Line:
    """One limit as it is asked: with its key, cost and role, and the name that headers give it."""

    __slots__ = ("charge", "key", "missing", "on_store_error", "policy", "shadow", "shared")

    def __init__(self, item: Item, rule: str, name: str, settings: Settings, own: Rule | None = None) -> None:
        spec = item.key if item.key is not None else own.key if own and own.key is not None else settings.key
        self.key = Key(spec, settings.ipv6_prefix)
        self.policy = Policy(name, item.limit, hidden=self.key.is_all)
        self.missing: MissingKey = settings.missing_key
        self.on_store_error: OnStoreError = (own and own.on_store_error) or settings.on_store_error
        self.shadow = shadow = item.shadow or settings.shadow or (own is not None and own.shadow)
        secret = settings.key_secret.encode("utf-8", "surrogatepass")

        @lru_cache(maxsize=_REMEMBERED)
        def charge(identity: str) -> Charge:
            key = bucket_key(identity, rule, secret=secret, plain=settings.plain_keys)
            return Charge(key, item.limit, item.cost, None, "shadow" if shadow else "limit")

        self.charge = charge
        self.shared = encode([("missing", self.key.text)])  # the identity of all whose key is not there


class Match:
    """The lines that apply to a request. One object per combination of rules, made once."""

    __slots__ = ("calls", "lines", "policies", "remembered", "route", "rule")

    def __init__(self, lines: Sequence[Line], rule: str, route: str) -> None:
        self.lines = lines
        self.rule = rule
        self.route = route  # what the key `route` means unless the framework knows better
        self.calls: list[Call] = list(dict.fromkeys(call for line in lines for call in line.key.calls))
        self.policies = [line.policy for line in lines]
        # plans by (user, client, route), where no key looks at more: a client that comes again costs one look-up
        self.remembered = lru_cache(_REMEMBERED)(self._plan) if all(line.key.memorable for line in lines) else None

    def _plan(self, user: str | None, client: str | None, route: str | None) -> "Plan":
        return _plan(self, _Known(user, client), route or self.route, {})


class _Known(Struct, frozen=True, gc=False):
    """A caller of whom nothing else is asked."""

    user: str | None
    client: str | None
    cookies: Mapping[str, str] = {}

    def header(self, _: str) -> str | None:
        return None


class Plan(Struct, frozen=True, gc=False):
    """What the store is asked. `denied`: a key is not there, and that refuses."""

    charges: Sequence[Charge]
    lines: Sequence[Line]
    policies: Sequence[Policy]
    denied: bool = False


class _Ruled:
    """A rule, compiled."""

    __slots__ = ("final", "lines", "methods", "name", "paths")

    def __init__(self, rule: Rule, settings: Settings) -> None:
        self.name = rule.full_name
        self.lines = _lines(rule.items(), self.name, settings, rule)
        self.final = rule.final and not rule.shadow
        self.paths = Paths("path", rule.path)
        self.methods = {*rule.methods, "HEAD"} if "GET" in rule.methods else set(rule.methods)

    def applies(self, method: str, path: str, *, normal: bool) -> bool:
        return (not self.methods or method in self.methods) and self.paths.match(path, normal=normal)


class Rules:
    """The settings, compiled for matching."""

    def __init__(self, settings: Settings) -> None:
        self._rules = [_Ruled(rule, settings) for rule in settings.compiled_rules()]
        self._exempt = Paths("exempt", settings.exempt) if settings.exempt else None
        self._two_forms = any(rule.paths.always_two for rule in self._rules)
        self._app = _lines(compile_items("app_limits", settings.app_limits), "app", settings)
        self._default = _lines(compile_items("limits", settings.limits), "default", settings)
        for name, lines in (
            ("app", self._app),
            *((rule.name, rule.lines) for rule in self._rules),
            ("default", self._default),
        ):
            _warn_if_forgeable(name, lines)
        self._combined = lru_cache(maxsize=1024)(self._combine)
        self._always = None if self._rules or self._exempt else self._combine(())
        self._enabled = settings.enabled

    @property
    def calls(self) -> set[Call]:
        """All callables that keys name."""
        rules = [line for rule in self._rules for line in rule.lines]
        return {call for line in [*rules, *self._app, *self._default] for call in line.key.calls}

    def match(self, request: Request) -> Match | None:
        """What applies to a request, or None: exempt, or switched off."""
        if not self._enabled:
            return None
        if self._always is not None:  # no rules: nothing to look at
            return self._always
        path = request.path
        normal = normal_path(path)
        exempt = self._exempt
        if exempt and exempt.match(path, normal=False) and exempt.match(normal, normal=True):
            return None
        method = request.method
        found = self._first(method, path, normal=False)
        if normal == path and not self._two_forms:
            return self._combined((found,))
        return self._combined((found, self._first(method, normal, normal=True)))

    def _first(self, method: str, path: str, *, normal: bool) -> tuple[int, ...]:
        """The rules that match one form of the path, up to the first final one."""
        found = []
        for index, rule in enumerate(self._rules):
            if rule.applies(method, path, normal=normal):
                found.append(index)
                if rule.final:
                    break
        return tuple(found)

    def _combine(self, found: tuple[tuple[int, ...], ...]) -> Match:
        """The lines of all rules found; the default too if one of the forms met no final rule."""
        indices = dict.fromkeys(index for form in found for index in form)
        rules = [self._rules[index] for index in indices]
        lines = [*self._app, *(line for rule in rules for line in rule.lines)]
        final = [rule.name for rule in rules if rule.final]
        if not found or any(not any(self._rules[index].final for index in form) for form in found):
            lines += self._default
        return Match(lines, final[0] if final else "default", rules[0].name if rules else "unmatched")


def _lines(items: Sequence[Item], rule: str, settings: Settings, own: Rule | None = None) -> list[Line]:
    names = [item.limit.name or (rule if index == 0 else f"{rule}-{index + 1}") for index, item in enumerate(items)]
    return [Line(item, rule, name, settings, own) for item, name in zip(items, names, strict=True)]


def _warn_if_forgeable(rule: str, lines: Sequence[Line]) -> None:
    if lines and all(line.key.forgeable for line in lines):
        logger.warning(
            "ratelimit_mw: rule %s: its key, %s, is what clients write, who can have as many of it as they like; "
            "add a limit with another key, or app_limits",
            rule,
            lines[0].key.text,
        )


def plan(match: Match, request: Request, answers: Answers) -> Plan:
    """The charges of a request, given what the callables of its match answered."""
    if match.remembered is not None:
        user, client = request.user, request.client
        if (user is None or len(user) <= _SHORT) and (client is None or len(client) <= _SHORT):
            return match.remembered(user, client, request.route)
    return _plan(match, request, request.route or match.route, answers)


def _plan(match: Match, request: Caller, route: str, answers: Answers) -> Plan:
    charges = []
    for line in match.lines:
        identity = line.key.identity(request, route, answers)
        if identity is None:
            return _plan_without(match, request, route, answers)
        charges.append(line.charge(identity))
    return Plan(charges, match.lines, match.policies)


def _plan_without(match: Match, request: Caller, route: str, answers: Answers) -> Plan:
    """The same when a key is not there."""
    charges, lines = [], []
    for line in match.lines:
        identity = line.key.identity(request, route, answers)
        if identity is None:
            warn_rarely(f"key {line.key.text!r}", "is not there; missing_key = %r says what follows", line.missing)
            if line.missing == "deny" and not line.shadow:
                return Plan((), (), (), denied=True)
            if line.missing == "deny" or (line.missing == "exempt" and not line.key.failed(answers)):
                continue
            identity = line.shared
        charges.append(line.charge(identity))
        lines.append(line)
    return Plan(charges, lines, [line.policy for line in lines])


def without_store(asked: Plan) -> tuple[Source, Plan]:
    """What happens when the store failed: the strictest of what the lines say, and what is asked locally instead."""
    modes = {line.on_store_error for line in asked.lines if not line.shadow}
    if "deny" in modes:
        return "denied_on_error", Plan((), (), ())
    kept = [index for index, line in enumerate(asked.lines) if line.on_store_error == "local"]
    if not kept:
        return "allowed_on_error", Plan((), (), ())
    return "local", Plan(
        [asked.charges[index] for index in kept],
        [asked.lines[index] for index in kept],
        [asked.policies[index] for index in kept],
    )


def conclude(match: Match, asked: Plan, decisions: Sequence[Decision], source: Source = "store") -> Verdict:
    """The verdict on a request."""
    if asked.denied or source == "denied_on_error":
        return Verdict(False, (), (), match.rule, source)
    return verdict_of(asked.charges, decisions, match.rule, source, asked.policies)
