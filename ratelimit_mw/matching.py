"""Match: which rules apply to a request. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_mw.advice import AdviceOnMarks, Unproxied, advice
from ratelimit_mw.calls import OF_ENABLED, OF_WHEN, Call, asked, call_from
from ratelimit_mw.choices import compile_limits
from ratelimit_mw.client_ip import ClientFinder
from ratelimit_mw.hosts import Hosts
from ratelimit_mw.keys import Key
from ratelimit_mw.lines import Lines
from ratelimit_mw.marks import Mark, bucket_for, name_for
from ratelimit_mw.members import Members
from ratelimit_mw.message_limits import MessageLimits
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.path_index import PathIndex
from ratelimit_mw.paths import Forms, Paths
from ratelimit_mw.policy import Match, Plans
from ratelimit_mw.request import Request
from ratelimit_mw.routers import is_falcon
from ratelimit_mw.rules import Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.underscores import UNDERSCORES, written_by_one

_REMEMBERED: Final = 1024  # combinations of rules

Found = tuple[int, ...]  # rules that one form of a path meets, in order; ~index of one that does not end the search


class _Ruled:
    """A rule, compiled, but for its path.

    `name`, `bucket`: of one that stands on an endpoint; `base` and `place`: the same before numbers were added to tell
    several apart. `level`: how far out, 0 for the endpoint itself. `preflight`: only for CORS preflights.
    """

    __slots__ = (
        *("_in_bucket", "_of_preflights", "always", "base", "ends", "exempts", "hosts", "level", "limits", "lines"),
        *("methods", "name", "place", "preflight", "says", "when"),
    )

    def __init__(
        self,
        rule: Rule,
        settings: Settings,
        name: str | None = None,
        bucket: str | None = None,
        *,
        base: str = "",
        place: str = "",
        level: int = 0,
    ) -> None:
        self.name: Final = name or rule.full_name
        self.base: Final = base
        self.place: Final = place
        self.ends: Final = rule.ends
        self.exempts: Final = rule.exempt
        self.level: Final = level
        limits = rule.limits_by(settings.tier, settings.default_tier)
        self._in_bucket: Final = partial(Lines, limits, self.name, settings, rule, concurrent=rule.concurrent)
        self._of_preflights: Lines | None = None
        self.lines: Final = self._in_bucket(bucket=bucket)
        self.preflight: Final = rule.preflight
        self.methods: Final = rule.all_methods
        self.hosts: Final = Hosts("host", rule.host) if rule.host else None
        self.when: Final = None if rule.when is None else call_from(rule.when)
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

    def lines_for(self, *, preflight: bool) -> Lines:
        """Its limits; for a CORS preflight the same limits in buckets of their own."""
        if not preflight or self.preflight:
            return self.lines
        if self._of_preflights is None:
            self._of_preflights = self._in_bucket(bucket=f"{self.lines.bucket}/preflight")  # no name has a slash
        return self._of_preflights

    def counts_as(self, other: "_Ruled") -> bool:
        """Whether it is the same limit, of the same requests."""
        return self.says == other.says

    def applies(self, method: str, request: Request) -> bool | None:
        """Whether it applies, as far as nobody has to be asked; None when that cannot be read."""
        if self.methods and method not in self.methods:
            return False
        return True if self.hosts is None else self.hosts.match(request.header_lines("host"))


Marked = tuple[_Ruled, ...]  # what stands on one endpoint, compiled
Level = tuple[tuple[Mark, ...], str, str]  # marks; without a name, what their bucket and their limits are called after
_Look = tuple[Found, Marked]  # what one form of the path meets, and the limits on the endpoint that apply


class _Table:
    """Rules in order, and what applies to requests that meet no final one."""

    def __init__(self, rules: Sequence[Rule], app: Lines, default: Lines, preflight: Lines, settings: Settings) -> None:
        self.rules: Final = [_Ruled(rule, settings) for rule in rules]
        self._app: Final = app
        self._default: Final = default
        self._preflight: Final = preflight
        self.messages: Final = MessageLimits(rules, settings)
        paths = [Paths("path", rule.path) for rule in rules]
        self._two_forms: Final = any(path.always_two for path in paths)
        case = settings.ignore_case
        self._received: Final = PathIndex.of_rules([path.received_templates for path in paths], ignore_case=case)
        self._normal: Final = PathIndex.of_rules([path.normal_templates for path in paths], ignore_case=case)
        self.combined: Final = lru_cache(maxsize=_REMEMBERED)(self._combine)

    def take_empty(self) -> None:
        """Let `{x}` take an empty segment too."""
        self._received.empty = self._normal.empty = True

    def match(self, method: str, forms: Forms, request: Request, marked: Marked) -> Match:
        """What applies to a request. `marked`: what stands on its endpoint."""
        said: dict[int, bool | None] = {}
        looks = [(self._first(place, method, request, said), marked) for place in self._places(forms)]
        return self.combined(tuple(dict.fromkeys(looks)) if len(looks) > 1 else (looks[0],))

    def _places(self, forms: Forms) -> list[list[int]]:
        """The rules whose paths match, for each form of the path."""
        places = [self._received.matching(path) for path in forms.received]
        if forms.normal is not forms.received or self._two_forms:
            places += [self._normal.matching(path) for path in forms.normal]
        return places

    def match_preflight(self, announced: str, forms: Forms, request: Request, marked: Marked) -> Match:
        """What applies to a CORS preflight that announces this method: the first rule for preflights that is final.

        Without one, all that applies to an OPTIONS request and all that applies to the method it announces. So what a
        client announces can add limits, and removes none.
        """
        said: dict[int, bool | None] = {}
        standing = {method: _applying(marked, method, request) if marked else () for method in ("OPTIONS", announced)}
        looks: list[_Look] = []
        for place in self._places(forms):
            own = self._first(place, "OPTIONS", request, said, preflight=True)
            for method, applying in standing.items():
                ended = own and own[-1] >= 0
                looks.append((own if ended else own + self._first(place, method, request, said), applying))
        return self.combined(tuple(dict.fromkeys(looks)), preflight=True)

    def _first(
        self,
        indices: Sequence[int],
        method: str,
        request: Request,
        said: dict[int, bool | None],
        *,
        preflight: bool = False,
    ) -> Found:
        """Of rules whose path matches, those that apply, up to the first that ends the search.

        `preflight`: looks at the rules for preflights, and else at all others. `said`: what each rule's `when` said of
        this request. Where it failed, or the host cannot be read, or the path matches loosely (~index), the rule
        applies and the search goes on.
        """
        found: list[int] = []
        for number in indices:
            index = max(number, ~number)
            rule = self.rules[index]
            if rule.preflight is not preflight or (applies := rule.applies(method, request)) is False:
                continue
            if rule.when is not None and index not in said:
                said[index] = asked(rule.when, request, *OF_WHEN)
            if (agrees := said.get(index, True)) is False:
                continue
            ends = rule.ends and applies is True and agrees is True and number >= 0
            found.append(index if ends else ~index)
            if ends:
                break
        return tuple(found)

    def _combine(self, looks: tuple[_Look, ...], *, preflight: bool = False) -> Match:
        """The lines of all rules found; the default too if one of the looks met no final rule, nor the endpoint."""
        met = dict.fromkeys(index if index >= 0 else ~index for form, _ in looks for index in form)
        marked = dict.fromkeys(rule for _, standing in looks for rule in standing)
        rules = [*(self.rules[index] for index in met), *marked]
        groups = [self._app, *(rule.lines_for(preflight=preflight) for rule in rules)]
        ends = [form[-1] if form and form[-1] >= 0 else None for form, _ in looks]
        final = [self.rules[index].name for index in ends if index is not None]
        final += [rule.name for rule in marked if rule.ends]
        default = self._preflight if preflight else self._default
        if any(end is None and not any(rule.ends for rule in look[1]) for end, look in zip(ends, looks, strict=True)):
            groups.append(default)
        name, route = final[0] if final else default.rule, rules[0].name if rules else "unmatched"
        messages = None if preflight else self.messages.of(list(met), ends, name, route)
        return Match(groups, name, route, default, messages=messages)


class Rules:
    """The settings, compiled for matching. `findings`: what is to be reported at start."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._enabled: Final = settings.enabled if isinstance(settings.enabled, bool) else call_from(settings.enabled)
        finder = ClientFinder(settings.trusted_proxies, settings.proxy_header)
        self._finder: Final = finder if settings.trusted_proxies else None
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
        self._table: Final = _Table(rules, app, default, preflight, settings)
        self._blocklist: Final = Match((), "blocklist", "unmatched", denied=True)
        self.names: Counter[str] = Counter()  # of limits in rules: limits on endpoints get other names
        for rule in self._table.rules:
            self.names[rule.name] += len(rule.lines.fixed or (rule,))
        self.lines: Final = [app, *(rule.lines for rule in self._table.rules), default]
        self._warned = False  # of a server that keeps underscores
        self._unproxied: Unproxied | None = Unproxied(finder)
        self._look_no_further()
        self._advise_on_marks: Final = AdviceOnMarks(app)
        self._on_marks: Final = lru_cache(maxsize=_REMEMBERED)(self._of_marks)
        found = advice(rules, self.lines, self._table.messages.lines, ignore_case=settings.ignore_case)
        self.findings: Final[Sequence[Finding]] = list(found)

    @property
    def keys(self) -> list[Key]:
        """All keys that are known before a request comes."""
        return [key for lines in self.lines for key in (*lines.keys, lines.tier) if key is not None]

    @property
    def calls(self) -> set[Call]:
        """All callables that keys, costs, tiers and limits name."""
        return {call for lines in self.lines for call in lines.calls}

    @property
    def algorithms(self) -> set[str]:
        """The algorithms of all limits that are known before a request comes."""
        every = [*self.lines, *self._table.messages.lines]
        return {line.policy.limit.algorithm for lines in every for line in lines.known}

    @property
    def waits(self) -> bool:
        """Whether a request may be held back."""
        return any(lines.waits for lines in self.lines)

    @property
    def queues(self) -> bool:
        """Whether a request may have to wait for a slot."""
        return any(lines.queues for lines in self.lines)

    def inside_of(self, outer: "Rules") -> None:
        """Share with the rules of an outer gate what one app needs once: names of limits, and the look for a proxy."""
        self.names, self._unproxied = outer.names, outer._unproxied  # noqa: SLF001  # one of us
        self._look_no_further()

    def look_at(self, app: object) -> None:
        """Read paths as `app` does, where that cannot be done for all apps alike."""
        if is_falcon(app):
            self._table.take_empty()

    def compiled(
        self, marks: tuple[Mark, ...], endpoint: str, shown: str = "", *outer: Level, beside: Marked = ()
    ) -> Marked:
        """Compile the marks of an endpoint.

        `endpoint`: identifies the bucket of marks without a name. `shown`: the route, which clients see as the name of
        these limits; the same as `endpoint` if it is empty. `outer`: the same of what the endpoint belongs to, the
        nearest first; it applies unless a mark further in ends the search. `beside`: other marks that apply to the same
        request, whose names are taken.
        """
        found: list[_Ruled] = []
        for level, (standing, of_bucket, of_limits) in enumerate(((marks, endpoint, shown), *outer)):
            for mark in standing:
                base = mark.rule.name or name_for(of_limits or of_bucket)
                namesakes = [one for one in (*beside, *found) if one.base == base and not one.exempts]
                number = 1 + sum(len(one.lines.fixed or (one,)) for one in namesakes)
                number += 0 if mark.rule.name else self.names[base]
                name = base if number == 1 else f"{base}-{number}"
                # no rule of the settings has an @ in its name, and no name has brackets
                place = f"@{mark.rule.name}" if mark.rule.name else f"@{bucket_for(of_bucket)}()"
                rule = partial(_Ruled, mark.rule, self._settings, name, base=base, place=place, level=level)
                one = rule(place)
                alike = [other for other in found if other.place == place and not other.exempts]
                meets = [other for other in alike if not mark.rule.name or one.limits & other.limits]
                same = next((other for other in meets if mark.rule.name and other.counts_as(one)), None)
                # the same limit once more is that limit; others that would count in one bucket are two
                found.append(same or (rule(place + "+" * len(meets)) if meets else one))
        self._advise_on_marks.look(one.lines for one in (*beside, *found))
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
        on = self._enabled
        enabled = on is True or (callable(on) and asked(on, request, *OF_ENABLED) is not False)
        return self._looked_at(request, marked) if enabled else None

    def _looked_at(self, request: Request, marked: Marked) -> Match | None:
        if (unproxied := self._unproxied) is not None:  # another thread may be done with it meanwhile
            unproxied.look(request)
            if unproxied.done:
                self._unproxied = None
                self._look_no_further()
        if self._finder is not None:
            request.client = self._client(self._finder, request)
        if self._blocked is not None and self._blocked.have(request, once=False):
            return self._blocklist
        if self._safe is not None and self._safe.have(request, once=True):
            return None
        method, forms = request.method, Forms.of(request.paths)
        if self._exempt and self._exempt.match_all(forms):
            return None
        if method == "OPTIONS" and (announced := _announced(request)) is not None:
            return self._table.match_preflight(announced, forms, request, marked)
        return self._table.match(method, forms, request, _applying(marked, method, request) if marked else ())

    def _client(self, finder: ClientFinder, request: Request) -> str | None:
        """The address of the client. Raises `ConfigError` with `strict` where the server lets clients forge it."""
        if not request.keeps_underscores:
            return finder.find(request.client, request.header_lines)
        if not self._warned or self._settings.strict:
            self._warned = True
            warn_or_fail([UNDERSCORES], strict=self._settings.strict)
        return finder.find(request.client, lambda name: written_by_one(name, request.header_lines(name)))

    def of_client_at(self, marked: Marked) -> Plans | None:
        """`of_client` where this stands on the endpoint."""
        match = None if self.at_once is None else self._on_marks(marked)
        return None if match is None else match.of_client

    def _of_marks(self, marked: Marked) -> Match | None:
        """What applies besides no other rule, if all of them do, whatever is asked for."""
        return self._table.combined((((), marked),)) if _apply_always(marked) else None

    def _look_no_further(self) -> None:
        """What applies to every request but a preflight, `at_once`, if the same applies to all; and its plans."""
        looks = (self._finder, self._unproxied, self._blocked, self._safe, self._exempt)
        same = self._enabled is True and not any(looks) and all(rule.preflight for rule in self._table.rules)
        self.at_once: Match | None = self._table.combined((((), ()),)) if same else None
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
            agrees = asked(rule.when, request, *OF_WHEN)
        if agrees is not False:
            found.append(rule)
            if rule.ends and agrees:
                last = rule.level
    return tuple(found)


def _apply_always(marked: Marked) -> bool:
    return not marked[-1].level and all(rule.always for rule in marked)


def _announced(request: Request) -> str | None:
    """The method that a CORS preflight announces; None where the OPTIONS request is no preflight (Fetch).

    It is any text that a client writes. Of several lines the first counts: what it names can only add limits.
    """
    lines = request.header_lines("access-control-request-method")
    return lines[0].strip().upper() if lines and request.header_lines("origin") else None
