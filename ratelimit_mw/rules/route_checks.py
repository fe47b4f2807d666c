"""Startup checks of rules against the routes of the app: paths without a route, methods, and routes left out."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, NamedTuple

from ratelimit_mw.core.log import Finding
from ratelimit_mw.http.path_index import PARAMETER, match_level
from ratelimit_mw.http.paths import Forms, Paths, merged_path, normal_path
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import PathSpec, Rule

# A segment that is at least this similar to a route's segment counts as a misspelling. 1 is equality.
_SIMILARITY: Final = 0.8
_MAX_COMPARED: Final = 200  # segments, for each one of a rule; a comparison takes some microseconds
_ANY: Final = "{}"  # a segment with a parameter
_BELOW = re.compile(r"(/[^{}]+)/\{\w+:path\}")  # a template for all paths below one
_BRACKETS: Final = re.compile(r"<([^<>]*)>")
_OF_ONE_SEGMENT: Final = {"", "default", "string", "str", "slug", "any"}
_TYPED: Final = {"int", "float", "uuid"}

Gapped = tuple[str | None, ...]  # the segments of a template; None is the gap


class RouteShape(NamedTuple):
    """The shape of a route. `methods`: empty for all methods.

    `path`: the template. A segment with `{x}` may have any text, one with `{x:int}`, `{x:float}` or `{x:uuid}` only
    such a text, and `{x:path}` matches all that follows.
    """

    path: str
    methods: frozenset[str] = frozenset()


def shape_of_bracket_template(template: str, methods: Iterable[str] = ()) -> RouteShape:
    """Return the shape of a route of Flask or Django, `/users/<int:id>`. An unknown converter may match a slash."""

    def shape(found: re.Match[str]) -> str:
        converter = found[1].rpartition(":")[0].partition("(")[0]  # `int` of `int(min=1):number`
        if converter in _TYPED:
            return f"{{x:{converter}}}"
        return "{x}" if converter in _OF_ONE_SEGMENT else "{x:path}"

    return RouteShape(_BRACKETS.sub(shape, template), frozenset(methods))


def route_findings(
    settings: Settings, routes: Sequence[RouteShape], has_route: Callable[[str], bool]
) -> Iterator[Finding]:
    """Yield findings on paths that no route has, methods that no route accepts, and routes left out of `exempt`.

    An exempt path has a finding only if routes are below it, so that these were probably meant.
    A rule gets one finding for each path that resembles a route, and one for all its other paths without a route. Its
    methods are checked only if all its paths have routes. `has_route`: looks up a path without parameters in the app's
    router. A path with parameters has a finding only if no route can have any such path. With `ignore_case`, rules
    match paths that routers do not, so nothing is yielded.
    """
    if settings.ignore_case:
        return
    index = _RouteIndex(routes)
    rules = [(f"rules[{number}] ({rule.full_name})", rule) for number, rule in enumerate(settings.parsed_rules())]
    yield from _left_out_findings(settings, rules, [route.path for route in routes])
    exempt = [("exempt", settings.exempt), *((place, rule.path) for place, rule in rules if rule.exempt)]
    for place, path in [(place, path) for place, paths in exempt for path in _texts(paths)]:
        if not _is_routed(path, index, has_route) and (below := index.below(path)) is not None:
            yield Finding(
                f"{place}: no route has the path {path}, so it exempts nothing; write {below} for the paths below it",
                weakens_limits=False,
                code="RL-137",
            )
    for place, rule in rules:
        if rule.exempt:
            continue
        paths = _texts(rule.path)
        unrouted = [path for path in paths if not _is_routed(path, index, has_route)]
        yield from _path_findings(place, unrouted, index)
        if rule.methods and not unrouted:
            yield from _method_findings(place, rule, [route for path in paths for route in index.meeting(path)])


def _left_out_findings(
    settings: Settings, rules: Sequence[tuple[str, Rule]], routed: Iterable[str]
) -> Iterator[Finding]:
    """Yield a finding for each exempt `/x/{rest:path}` if `/x` or `/x/` has a route, and only the default limits apply.

    If a rule names `/x`, that is meant. `rules`: with their places. `routed`: the templates of the routes.
    """
    if not (settings.limits or settings.app_limits):
        return
    roots: dict[str, list[str]] = {}
    for path in dict.fromkeys(routed):
        roots.setdefault(path.strip("/"), []).append(path)
    named = {path.strip("/") for _, rule in rules for path in _texts(rule.path)}
    exempt = [("exempt", path) for path in _texts(settings.exempt)]
    exempt += [(place, path) for place, rule in rules if rule.exempt for path in _texts(rule.path)]
    for place, template in exempt:
        below = _BELOW.fullmatch(template)
        if below is None or (root := below[1].strip("/")) in named:
            continue
        paths = Paths(place, [path for _, path in exempt])
        left_out = " and ".join(path for path in roots.get(root, ()) if not paths.match_all(Forms.of([path])))
        if left_out:
            yield Finding(
                f"{place}: {template} does not match {left_out}, which has a route and is limited; add {left_out}, or "
                "give it a rule of its own, if this is meant",
                weakens_limits=False,
                code="RL-141",
            )


class _RouteIndex:
    """Finds routes by the segments of their templates, so that a rule is compared with few of them."""

    def __init__(self, routes: Sequence[RouteShape]) -> None:
        self._by_first: dict[str, list[tuple[RouteShape, Sequence[str]]]] = {}  # by the first segment; {} for any
        # By the other segments, with a gap: the texts that routes have in the gap, each with the path of the route.
        self._by_others: dict[Gapped, dict[str, str]] = {}
        for route in routes:
            segments = _segments(route.path)
            self._by_first.setdefault(_kind(segments[0]), []).append((route, segments))
            for segment, others in _gaps(segments):
                self._by_others.setdefault(others, {}).setdefault(segment, f"/{'/'.join(segments)}")

    def meeting(self, path: str) -> Iterator[RouteShape]:
        """Yield the routes that may have a path in common with this template."""
        segments = _segments(path)
        first = _kind(segments[0])
        firsts = self._by_first if first == _ANY else (first, _ANY)
        for known in firsts:
            for route, others in self._by_first.get(known, ()):
                if _may_meet(segments, others):
                    yield route

    def below(self, path: str) -> str | None:
        """Return the template of all paths below this one if a route may have such a path, or None."""
        template = f"{path.rstrip('/')}/{{rest:path}}"
        return None if ":path}" in path or next(self.meeting(template), None) is None else template

    def misspelled(self, path: str) -> str | None:
        """Return the path of a route that differs by the spelling of one segment, or None."""
        for segment, others in _gaps(_segments(path)):
            matcher = SequenceMatcher(None, b=segment, autojunk=False)
            for text, meant in islice(self._by_others.get(others, {}).items(), _MAX_COMPARED):
                matcher.set_seq1(text)
                ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio  # the cheapest first
                if all(ratio() >= _SIMILARITY for ratio in ratios):
                    return meant
        return None


def _texts(value: PathSpec) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _is_routed(path: str, index: _RouteIndex, has_route: Callable[[str], bool]) -> bool:
    for form in dict.fromkeys((path, normal_path(path), merged_path(path))):  # a rule matches any of them
        bare = form.rstrip("/")  # with and without a slash at the end
        if next(index.meeting(form), None) if "{" in form else has_route(bare or "/") or has_route(f"{bare}/"):
            return True
    return False


def _path_findings(place: str, paths: Sequence[str], index: _RouteIndex) -> Iterator[Finding]:
    meant = {path: similar for path in paths if (similar := index.misspelled(path)) is not None}
    for path, similar in meant.items():
        yield Finding(f"{place}: no route has the path {path}; did you mean {similar}?", code="RL-137")
    others = [path for path in paths if path not in meant]
    if others:
        below = next(filter(None, map(index.below, others)), None)
        fix = "correct the path" if below is None else f"write {below} for the paths below it"
        yield Finding(
            f"{place}: no route has the path {' or '.join(others)}, so the rule limits only requests that are answered "
            f"with 404; {fix}, if this is not meant",
            weakens_limits=False,  # a limit on such requests may be meant
            code="RL-137",
        )


def _method_findings(place: str, rule: Rule, routes: Sequence[RouteShape]) -> Iterator[Finding]:
    accepted = {method for route in routes for method in route.methods}
    if not routes or not all(route.methods for route in routes):
        return
    implicit = {"OPTIONS", *(["HEAD"] if "GET" in accepted else [])}  # middleware may answer OPTIONS
    if rule.all_methods.isdisjoint(accepted | implicit):
        yield no_effect_methods_finding(f"{place}: it", rule, "the routes with its path", accepted)


def no_effect_methods_finding(subject: str, rule: Rule, routes: str, accepted: Iterable[str]) -> Finding:
    """Return the finding on a rule for methods that none of its routes accepts.

    `subject`, `routes`: how the text names the rule and its routes. `accepted`: the methods of these routes.
    """
    return Finding(
        f"{subject} has methods = {list(rule.methods)}, and {routes} have {', '.join(sorted(accepted))}, so it limits "
        "nothing; name methods of the routes, or leave methods out",
        code="RL-128",
    )


def _may_meet(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two templates may have a path in common. True if that is uncertain."""
    first, second = sorted((one, other), key=len)
    for a, b in zip(first, second, strict=False):
        if ":path}" in a or ":path}" in b:
            return True
        if not _segments_meet(a, b):
            return False
    return len(first) == len(second) or ":path}" in second[len(first)]


def _segments_meet(one: str, other: str) -> bool:
    """Return whether two segments may have a text in common. No number counts as a UUID, though one of 32 digits is."""
    if one == other:
        return True
    literals = [segment for segment in (one, other) if "{" not in segment]
    kinds = {_converter(one), _converter(other)} - {""}
    if literals:
        return len(literals) == 1 and all(match_level(kind, literals[0]) > 0 for kind in kinds)
    return "uuid" not in kinds or kinds == {"uuid"}


def _converter(segment: str) -> str:
    """Return the converter of a segment that is a parameter for a number or a UUID, else empty text."""
    found = PARAMETER.fullmatch(segment)
    return found[2] if found and found[2] in _TYPED else ""


def _gaps(segments: Sequence[str]) -> Iterator[tuple[str, Gapped]]:
    """Yield each segment of text, with the kinds of all segments, where None replaces this one."""
    kinds = tuple(map(_kind, segments))
    for position, segment in enumerate(segments):
        if "{" not in segment:
            yield segment, (*kinds[:position], None, *kinds[position + 1 :])


def _kind(segment: str) -> str:
    return _ANY if "{" in segment else segment


def _segments(template: str) -> Sequence[str]:
    return template.strip("/").split("/")
