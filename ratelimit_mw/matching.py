"""Match: which rules apply to a request. Pure: no store, no clock, no I/O."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_mw.advice import Unproxied, advise
from ratelimit_mw.calls import Call, asked, call_from, sync_call_from
from ratelimit_mw.choices import compile_limits
from ratelimit_mw.client_ip import ClientFinder
from ratelimit_mw.hosts import Hosts
from ratelimit_mw.keys import Key
from ratelimit_mw.lines import Lines
from ratelimit_mw.marks import Mark, bucket_for, name_for
from ratelimit_mw.members import Members
from ratelimit_mw.message_limits import MessageLimits
from ratelimit_mw.path_index import PathIndex
from ratelimit_mw.paths import Paths, normal_path
from ratelimit_mw.policy import Match, Plans
from ratelimit_mw.request import Request
from ratelimit_mw.rules import Rule
from ratelimit_mw.settings import Settings

_REMEMBERED: Final = 1024  # combinations of rules

Found = tuple[int, ...]  # rules that one form of a path meets, in order; ~index of one that does not end the search


class _Ruled:
    """A rule, compiled, but for its path.

    `name`, `bucket`: of one that stands on an endpoint. `base`: its name before others there had the same. `level`: how
    far out, 0 for the endpoint itself.
    """

    __slots__ = (
        *("always", "base", "ends", "exempts", "hosts", "level", "limits", "lines", "methods", "name"),
        *("says", "when"),
    )

    def __init__(
        self,
        rule: Rule,
        settings: Settings,
        name: str | None = None,
        bucket: str | None = None,
        *,
        base: str = "",
        level: int = 0,
    ) -> None:
        self.name: Final = name or rule.full_name
        self.base: Final = base
        self.ends: Final = rule.ends
        self.exempts: Final = rule.exempt
        self.level: Final = level
        limits = rule.limits_by(settings.tier, settings.default_tier)
        self.lines: Final = Lines(limits, self.name, settings, rule, bucket, rule.concurrent)
        self.methods: Final = rule.all_methods
        self.hosts: Final = Hosts("host", rule.host) if rule.host else None
        self.when: Final = None if rule.when is None else sync_call_from(rule.when)
        self.always: Final = not self.methods and self.hosts is None and self.when is None
        self.limits: Final = frozenset(line.policy.limit.bucket for line in self.lines.known)
        self.says: Final = (
            rule.limits,
            rule.methods,
            rule.key,
            rule.cost,
            rule.tier,
            rule.settle,
            rule.count_status,
            rule.penalty,
            rule.shadow,
            rule.final,
            rule.when,
        )

    def counts_as(self, other: "_Ruled") -> bool:
        """Whether it is the same limit, of the same requests."""
        return self.says == other.says

    def applies(self, method: str, request: Request) -> bool | None:
        """Whether it applies, as far as nobody has to be asked; None when that cannot be read."""
        if self.methods and method not in self.methods:
            return False
        return True if self.hosts is None else self.hosts.match(request.header_lines("host"))


Marked = tuple[_Ruled, ...]  # what stands on one endpoint, compiled
Level = tuple[tuple[Mark, ...], str]  # marks, and what names the limits of those without a name


class _Table:
    """Rules in order, and what applies to requests that meet no final one."""

    def __init__(self, rules: Sequence[Rule], app: Lines, default: Lines, settings: Settings) -> None:
        self.rules: Final = [_Ruled(rule, settings) for rule in rules]
        self._app: Final = app
        self._default: Final = default
        self.messages: Final = MessageLimits(rules, settings)
        paths = [Paths("path", rule.path) for rule in rules]
        self._two_forms: Final = any(path.always_two for path in paths)
        case = settings.ignore_case
        self._received: Final = _index([path.received_templates for path in paths], ignore_case=case)
        self._normal: Final = _index([path.normal_templates for path in paths], ignore_case=case)
        self.combined: Final = lru_cache(maxsize=_REMEMBERED)(self._combine)

    def match(self, method: str, path: str, request: Request, marked: Marked) -> Match:
        """What applies to a request. `marked`: what stands on its endpoint."""
        said: dict[int, bool | None] = {}
        normal = normal_path(path)
        found = self._first(self._received.matching(path), method, request, said)
        if normal == path and not self._two_forms:
            return self.combined((found,), marked)
        return self.combined((found, self._first(self._normal.matching(normal), method, request, said)), marked)

    def _first(self, indices: Sequence[int], method: str, request: Request, said: dict[int, bool | None]) -> Found:
        """Of rules whose path matches, those that apply, up to the first that ends the search.

        `said`: what each rule's `when` said of this request. Where it failed, or the host cannot be read, the rule
        applies and the search goes on.
        """
        found: list[int] = []
        for index in indices:
            rule = self.rules[index]
            if (applies := rule.applies(method, request)) is False:
                continue
            if rule.when is not None and index not in said:
                said[index] = asked(rule.when, request)
            if (agrees := said.get(index, True)) is False:
                continue
            ends = rule.ends and applies is True and agrees is True
            found.append(index if ends else ~index)
            if ends:
                break
        return tuple(found)

    def _combine(self, forms: tuple[Found, ...], marked: Marked) -> Match:
        """The lines of all rules found; the default too if one of the forms met no final rule, nor the endpoint."""
        met = dict.fromkeys(index if index >= 0 else ~index for form in forms for index in form)
        rules = [*(self.rules[index] for index in met), *dict.fromkeys(marked)]
        groups = [self._app, *(rule.lines for rule in rules)]
        ended = [rule.name for rule in marked if rule.ends]
        final = [self.rules[index].name for form in forms for index in form if index >= 0] + ended
        if not ended and not all(form and form[-1] >= 0 for form in forms):
            groups.append(self._default)
        name, route = final[0] if final else self._default.rule, rules[0].name if rules else "unmatched"
        ends = [form[-1] if form and form[-1] >= 0 else None for form in forms]
        return Match(groups, name, route, self._default, messages=self.messages.of(list(met), ends, name, route))


def _index(templates: Sequence[Sequence[str]], *, ignore_case: bool) -> PathIndex:
    """Of the templates of each rule."""
    return PathIndex(
        [(template, index) for index, of_rule in enumerate(templates) for template in of_rule], ignore_case=ignore_case
    )


class Rules:
    """The settings, compiled for matching."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._enabled: Final = settings.enabled if isinstance(settings.enabled, bool) else call_from(settings.enabled)
        self._finder: Final = (
            ClientFinder(settings.trusted_proxies, settings.proxy_header) if settings.trusted_proxies else None
        )
        blocks = settings.blocklist and not settings.shadow  # a shadow refuses nobody
        self._blocked: Final = Members("blocklist", settings.blocklist) if blocks else None
        self._safe: Final = Members("safelist", settings.safelist) if settings.safelist else None
        self._exempt: Final = Paths("exempt", settings.exempt) if settings.exempt else None
        rules, tiers = settings.compiled_rules(), (settings.tier, settings.default_tier)
        app, default, preflight = (
            Lines(compile_limits(field, getattr(settings, field), *tiers), name, settings, concurrent=concurrent)
            for field, name, concurrent in (
                ("app_limits", "app", 0),
                ("limits", "default", settings.concurrent),
                ("limits", "preflight", settings.concurrent),
            )
        )
        self._table: Final = _Table([rule for rule in rules if not rule.preflight], app, default, settings)
        self._preflight: Final = _Table([rule for rule in rules if rule.preflight], app, preflight, settings)
        self._blocklist: Final = Match((), "blocklist", "unmatched", denied=True)
        own = [rule.lines for table in (self._table, self._preflight) for rule in table.rules]
        self.lines: Final = [app, *own, default]
        self._unproxied: Unproxied | None = None if settings.trusted_proxies else Unproxied()
        self._look_no_further()
        self._on_marks: Final = lru_cache(maxsize=_REMEMBERED)(self._of_marks)
        advise(rules, self.lines, self._table.messages.lines, ignore_case=settings.ignore_case)

    @property
    def keys(self) -> list[Key]:
        """All keys that are known before a request comes."""
        return [key for lines in self.lines for key in (*lines.keys, lines.tier) if key is not None]

    @property
    def calls(self) -> set[Call]:
        """All callables that keys, costs, tiers and limits name."""
        return {call for lines in self.lines for call in lines.calls}

    @property
    def waits(self) -> bool:
        """Whether a request may be held back."""
        return any(lines.waits for lines in self.lines)

    @property
    def queues(self) -> bool:
        """Whether a request may have to wait for a slot."""
        return any(lines.queues for lines in self.lines)

    def compiled(self, marks: tuple[Mark, ...], endpoint: str, *outer: Level) -> Marked:
        """What stands on an endpoint. `endpoint`: what names the limits of marks without a name.

        `outer`: the same of what the endpoint belongs to, the nearest first; it applies unless a mark further in ends
        the search.
        """
        found: list[_Ruled] = []
        for level, (standing, names) in enumerate(((marks, endpoint), *outer)):
            for mark in standing:
                base = mark.rule.name or name_for(names)
                alike = [one for one in found if one.base == base and not one.exempts]
                number = 1 + sum(len(one.lines.fixed or (one,)) for one in alike)
                name = base if number == 1 else f"{base}-{number}"
                # no rule of the settings has an @ in its name, and no name has brackets
                bucket = f"@{mark.rule.name}" if mark.rule.name else f"@{bucket_for(names)}()"
                rule = partial(_Ruled, mark.rule, self._settings, name, base=base, level=level)
                one = rule(bucket)
                meets = [other for other in alike if not mark.rule.name or one.limits & other.limits]
                same = next((other for other in meets if mark.rule.name and other.counts_as(one)), None)
                # the same limit once more is that limit; others that would count in one bucket are two
                found.append(same or (rule(bucket + "+" * len(meets)) if meets else one))
        return tuple(found)

    def match(self, request: Request, marked: Marked = ()) -> Match | None:
        """What applies to a request, or None: safe, exempt, or all is switched off.

        `marked`: what stands on its endpoint, where the face knows it. From here on the request's `client` is the one
        that trusted proxies name.
        """
        if self.at_once is not None and request.method != "OPTIONS":
            if not marked:
                return self.at_once
            if (match := self._on_marks(marked)) is not None:
                return match
        return self._looked_at(request, marked) if self._enabled is True or self._is_enabled(request) else None

    def _is_enabled(self, request: Request) -> bool:
        return callable(self._enabled) and asked(self._enabled, request) is not False

    def _looked_at(self, request: Request, marked: Marked) -> Match | None:
        if self._finder is not None:
            request.client = self._finder.find(request.client, request.header_lines)
        elif (unproxied := self._unproxied) is not None:  # another thread may be done with it meanwhile
            unproxied.look(request)
            if unproxied.done:
                self._unproxied = None
                self._look_no_further()
        if self._blocked is not None and self._blocked.have(request, once=False):
            return self._blocklist
        if self._safe is not None and self._safe.have(request, once=True):
            return None
        method, path = request.method, request.path
        exempt = self._exempt
        if exempt and exempt.match(path, normal=False) and exempt.match(normal_path(path), normal=True):
            return None
        if method == "OPTIONS" and _is_preflight(request):
            return self._preflight.match(method, path, request, ())
        return self._table.match(method, path, request, _applying(marked, method, request) if marked else ())

    def of_client_at(self, marked: Marked) -> Plans | None:
        """`of_client` where this stands on the endpoint."""
        match = None if self.at_once is None else self._on_marks(marked)
        return None if match is None else match.of_client

    def _of_marks(self, marked: Marked) -> Match | None:
        """What applies besides no other rule, if all of them do, whatever is asked for."""
        return self._table.combined(((),), marked) if _apply_always(marked) else None

    def _look_no_further(self) -> None:
        """What applies to every request but a preflight, `at_once`, if the same applies to all; and its plans."""
        looks = (self._finder, self._unproxied, self._blocked, self._safe, self._exempt, self._table.rules)
        same = self._enabled is True and not any(looks)
        self.at_once: Match | None = self._table.combined(((),), ()) if same else None
        self.of_client = None if self.at_once is None else self.at_once.of_client


def _applying(marked: Marked, method: str, request: Request) -> Marked:
    """Of what stands on an endpoint, what is for this request, out to the level of the first that ends the search.

    Where `when` failed, it applies, and the search goes on.
    """
    if _apply_always(marked):
        return marked
    found: list[_Ruled] = []
    last = marked[-1].level
    for rule in marked:
        if rule.level > last:
            break
        agrees = rule.applies(method, request)
        if agrees and rule.when is not None:
            agrees = asked(rule.when, request)
        if agrees is not False:
            found.append(rule)
            if rule.ends and agrees:
                last = rule.level
    return tuple(found)


def _apply_always(marked: Marked) -> bool:
    return not marked[-1].level and all(rule.always for rule in marked)


def _is_preflight(request: Request) -> bool:
    """Whether a browser asks by itself, before a request from another origin (Fetch, CORS-preflight)."""
    return bool(request.header_lines("origin") and request.header_lines("access-control-request-method"))
