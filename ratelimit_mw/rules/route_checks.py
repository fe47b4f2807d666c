"""Startup checks of rules against the routes of the app: paths that no route has, and methods that none accepts."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from ratelimit_mw.core.log import Finding
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import Rule

# A segment that is at least this similar to a route's segment counts as a misspelling. 1 is equality.
_SIMILARITY: Final = 0.8
_BRACKETS: Final = re.compile(r"<([^<>]*)>")
_OF_ONE_SEGMENT: Final = {"", "default", "string", "str", "slug", "any", "int", "float", "uuid"}


class RouteShape(NamedTuple):
    """The shape of a route. `methods`: empty for all methods.

    `path`: the template. A segment with `{x}` may have any text, and `{x:path}` matches all that follows.
    """

    path: str
    methods: frozenset[str] = frozenset()


def shape_of_bracket_template(template: str, methods: Iterable[str] = ()) -> RouteShape:
    """Return the shape of a route of Flask or Django, `/users/<int:id>`. An unknown converter may match a slash."""

    def shape(found: re.Match[str]) -> str:
        converter = found[1].rpartition(":")[0].partition("(")[0]  # `int` of `int(min=1):number`
        return "{x}" if converter in _OF_ONE_SEGMENT else "{x:path}"

    return RouteShape(_BRACKETS.sub(shape, template), frozenset(methods))


def route_findings(
    settings: Settings, routes: Sequence[RouteShape], has_route: Callable[[str], bool]
) -> Iterator[Finding]:
    """Yield findings on the paths of rules that no route has, and on methods that no route accepts.

    A rule gets one finding for each path that resembles a route, and one for all its other paths without a route. Its
    methods are checked only if all its paths have routes. `has_route`: looks up a path without parameters in the app's
    router. A path with parameters has a finding only if no route can have any such path. With `ignore_case`, rules
    match paths that routers do not, so nothing is yielded.
    """
    for index, rule in enumerate(() if settings.ignore_case else settings.parsed_rules()):
        if rule.exempt:
            continue
        paths = [rule.path] if isinstance(rule.path, str) else rule.path
        place = f"rules[{index}] ({rule.full_name})"
        unrouted = [path for path in paths if not _is_routed(path, routes, has_route)]
        yield from _path_findings(place, unrouted, routes)
        if not unrouted:
            reached = [route for route in routes if any(_may_meet(route.path, path) for path in paths)]
            yield from _method_findings(place, rule, reached)


def _is_routed(path: str, routes: Sequence[RouteShape], has_route: Callable[[str], bool]) -> bool:
    if "{" in path:
        return any(_may_meet(path, route.path) for route in routes)
    bare = path.rstrip("/")  # rules match with and without a slash at the end
    return has_route(bare or "/") or has_route(f"{bare}/")


def _path_findings(place: str, paths: Sequence[str], routes: Sequence[RouteShape]) -> Iterator[Finding]:
    meant = {path: similar for path in paths if (similar := _misspelled(path, routes)) is not None}
    for path, similar in meant.items():
        yield Finding(f"{place}: no route has the path {path}; did you mean {similar}?", code="RL-137")
    others = [path for path in paths if path not in meant]
    if others:
        yield Finding(
            f"{place}: no route has the path {' or '.join(others)}, so the rule limits only requests that are answered "
            "with 404; correct the path, if this is not meant",
            weakens_limits=False,  # a limit on such requests may be meant
            code="RL-137",
        )


def _method_findings(place: str, rule: Rule, routes: Sequence[RouteShape]) -> Iterator[Finding]:
    accepted = {method for route in routes for method in route.methods}
    if not rule.methods or not routes or not all(route.methods for route in routes):
        return
    implicit = {"OPTIONS", *(["HEAD"] if "GET" in accepted else [])}  # middleware may answer OPTIONS
    if rule.all_methods.isdisjoint(accepted | implicit):
        yield Finding(
            f"{place}: it has methods = {list(rule.methods)}, and the routes with its path have "
            f"{', '.join(sorted(accepted))}, so it limits nothing; name methods of the routes, or leave methods out",
            code="RL-128",
        )


def _may_meet(one: str, other: str) -> bool:
    """Return whether two templates may have a path in common. True if that is uncertain."""
    first, second = sorted((_segments(one), _segments(other)), key=len)
    for a, b in zip(first, second, strict=False):
        if ":path}" in a or ":path}" in b:
            return True
        if a != b and "{" not in a and "{" not in b:
            return False
    return len(first) == len(second) or ":path}" in second[len(first)]


def _misspelled(path: str, routes: Iterable[RouteShape]) -> str | None:
    """Return the path of a route that differs from `path` by the spelling of one segment, or None."""
    segments = _segments(path)
    for route in routes:
        others = _segments(route.path)
        different = [(a, b) for a, b in zip(segments, others, strict=False) if a != b and not (a[:1] == b[:1] == "{")]
        if len(others) == len(segments) and len(different) == 1:
            a, b = different[0]
            if "{" not in a + b and SequenceMatcher(None, a, b).ratio() >= _SIMILARITY:
                return f"/{'/'.join(others)}"
    return None


def _segments(template: str) -> Sequence[str]:
    return template.strip("/").split("/")
