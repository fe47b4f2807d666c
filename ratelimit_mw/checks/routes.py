"""Startup checks of rules against the routes of the app: paths without a route, methods, and routes left out."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, NamedTuple

from ratelimit_mw.core.log import Finding
from ratelimit_mw.http.path_index import PARAMETER, match_level
from ratelimit_mw.http.paths import Forms, Paths, merged_path, normal_path
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import Rule, placed, texts_of

# A segment that is at least this similar to a route's segment counts as a misspelling. 1 is equality.
_SIMILARITY: Final = 0.8
_MAX_COMPARED: Final = 200  # segments, for each one of a rule; a comparison takes some microseconds
_ANY: Final = "{}"  # a segment with a parameter
_BELOW = re.compile(r"(/[^{}]+)/\{\w+:path\}")  # a template for all paths below one
_BRACKETS: Final = re.compile(r"<([^<>]*)>")
_IMPLICIT_METHODS: Final = {"HEAD", "OPTIONS"}  # Flask adds them
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
    rules = placed(settings.parsed_rules())
    yield from _exempt_findings(settings, rules, [route.path for route in routes], index, has_route)
    for place, rule in rules:
        if rule.exempt:
            continue
        paths = texts_of(rule.path)
        unrouted = [path for path in paths if not _is_routed(path, index, has_route)]
        yield from _path_findings(place, unrouted, index)
        if not unrouted and "OPTIONS" not in rule.methods:  # which middleware may answer
            methods = [route.methods for path in paths for route in index.meeting(path)]
            yield from no_effect_methods(f"{place}: it", rule, "the routes with its path", methods)


def _exempt_findings(
    settings: Settings,
    rules: Sequence[tuple[str, Rule]],
    routed: Iterable[str],
    index: "_RouteIndex",
    has_route: Callable[[str], bool],
) -> Iterator[Finding]:
    """Yield at most one finding for each exempt path: it misses a route, or no route has it, but routes are below it.

    If a rule names the path, too, that is meant. `rules`: with their places. `routed`: the templates of the routes,
    which `index` finds. `has_route`: see `route_findings`.
    """
    exempt = [("exempt", path) for path in texts_of(settings.exempt)]
    exempt += [(place, path) for place, rule in rules if rule.exempt for path in texts_of(rule.path)]
    if not exempt:
        return
    roots: dict[str, list[str]] = {}
    for path in dict.fromkeys(routed):
        roots.setdefault(path.strip("/"), []).append(path or "/")
    paths = Paths("exempt", [path for _, path in exempt])
    seen = {path.strip("/") for _, rule in rules for path in texts_of(rule.path) if not rule.exempt}
    for place, template in sorted(exempt, key=lambda one: "{" not in one[1]):
        root = _root(template)
        if root in seen:
            continue
        left_out = _left_out(template, paths, roots, index) if settings.limits or settings.app_limits else []
        deeper = None if paths.match_all(Forms.of([f"/{root}/x"])) else index.below(template)
        if left_out:
            seen.add(root)
            shown = " and ".join(left_out)
            yield Finding(
                f"{place}: {template} does not match {shown}, which has a route and is limited; add {shown}, or "
                "give it a rule of its own, if this is meant",
                weakens_limits=False,
                code="RL-141",
            )
        elif deeper is not None and not _is_routed(template, index, has_route):
            seen.add(root)
            yield Finding(
                f"{place}: no route has the path {template}, so it exempts nothing; write {deeper} for the paths below "
                "it",
                weakens_limits=False,
                code="RL-137",
            )


def _root(template: str) -> str:
    below = _BELOW.fullmatch(template)
    return (below[1] if below else template).strip("/")


def _left_out(template: str, exempt: Paths, roots: Mapping[str, Sequence[str]], index: "_RouteIndex") -> Sequence[str]:
    """Return the paths that an exempt path misses, if only the default limits apply there.

    `/x` and `/x/{rest:path}` miss a route of `/x/`. `/x` misses what is mounted there, if it has no route of its own.
    `/x/y` misses `/y`, if nothing has `/x/y`: paths of a mounted app lack its prefix. `roots`: the templates of routes,
    by their text without slashes at the ends.
    """
    root, is_below = _root(template), _BELOW.fullmatch(template) is not None
    if "{" in template and not is_below:
        return ()
    if is_below or root in roots or exempt.match_all(Forms.of([f"/{root}/x"])):
        return [path for path in roots.get(root, ()) if not exempt.match_all(Forms.of([path]))]
    if any(path.startswith(f"{root}/{{") and ":path}" in path for path in roots):
        return [f"/{root}/{{rest:path}}"]
    nearest = _without_prefix(root, roots) if next(index.meeting(template), None) is None else None
    return [nearest] if nearest else []


def _without_prefix(root: str, roots: Mapping[str, Sequence[str]]) -> str | None:
    """Return the path of the route that a path names if its first segments are those of a mount, or None."""
    segments = root.split("/")
    endings = ("/".join(segments[start:]) for start in range(1, len(segments)))
    return next((roots[ending][0] for ending in endings if ending in roots), None)


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


def no_effect_methods(subject: str, rule: Rule, routes: str, methods: Sequence[Collection[str]]) -> Iterator[Finding]:
    """Yield a finding on a rule with `methods` that none of its routes accepts.

    `subject`, `routes`: how the text names the rule and its routes. `methods`: those of each route; empty for all.
    """
    accepted = {method for one in methods for method in one}
    reached = accepted | ({"HEAD"} if "GET" in accepted else set())
    if rule.methods and methods and all(methods) and rule.all_methods.isdisjoint(reached):
        shown = sorted(accepted - _IMPLICIT_METHODS or accepted)
        yield Finding(
            f"{subject} has methods = {list(rule.methods)}, and {routes} have {', '.join(shown)}, so it limits "
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
