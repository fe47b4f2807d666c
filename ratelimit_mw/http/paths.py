"""Validates the path templates of settings, and computes the forms of a request's path to match with them."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.memo import cached_property
from ratelimit_mw.http.path_index import (
    CONVERTERS,
    PARAMETER,
    PathTree,
    Segment,
    catch_all_index,
    matches_catch_all,
    segments_of,
)

_NORMAL = re.compile(
    r"/|(?:/(?!\.{1,2}(?:/|\Z))[^/\n]+)+"
)  # no empty, "." or ".." segment, no newline, no slash at the end
_SLASHES: Final = re.compile(r"/{2,}")
_MISTAKES: Final = [  # a pattern that a template must not contain; what is allowed instead
    (r"<[^/<>]+>|/:[A-Za-z_]", "'{id}' or '{id:int}' as parameter"),
    (r"/\*|\*(?:/|\Z)", "'{rest:path}' for all that follows, '{name}' for one segment"),
    (r"[?#]", "a path without ? and #; the query is not part of it"),
    (r"%[0-9A-Fa-f]{2}", "the character itself, such as a space for '%20'; paths are matched decoded"),
    (r"[\x00-\x1f\x7f-\x9f]", "a path without control characters"),
    (r"\A\s|\s\Z", "a path without white space at its ends"),
]


class Paths:
    """One or more validated path templates. Raises `ConfigError` that names the place.

    A path is matched twice: as received with the templates as written, and normalized with the normalized templates. So
    `/login/` in a rule matches a request for `/login/` as received, and one for `/login` in its normal form. See
    `Forms`.
    """

    def __init__(self, place: str, value: object) -> None:
        if not isinstance(value, str) and (not isinstance(value, Sequence) or not value):
            raise ConfigError(
                f"{place}: got {value!r}, expected a path such as '/users/{{id}}' or a list of these", code="RL-026"
            )
        templates = (
            [(place, value)] if isinstance(value, str) else [(f"{place}[{i}]", one) for i, one in enumerate(value)]
        )
        mistakes = ErrorCollector()
        self.received_templates: list[str] = []
        for template_place, template in templates:
            with mistakes.collect():
                self.received_templates.append(_checked_template(template_place, template))
        mistakes.raise_if_any()
        template_forms = [dict.fromkeys((normal_path(each), merged_path(each))) for each in self.received_templates]
        self.normal_templates = [each for forms in template_forms for each in forms]
        # whether even a normal path must be looked up in both trees
        self.has_two_forms = self.received_templates != self.normal_templates

    @cached_property
    def _received(self) -> PathTree:
        return PathTree((template, 0) for template in self.received_templates)

    @cached_property
    def _normal(self) -> PathTree:
        return PathTree((template, 0) for template in self.normal_templates)

    def match(self, path: str, *, normal: bool) -> bool:
        """Return whether `path` matches exactly. `normal`: `path` is in a normal form, not as received."""
        numbers = (self._normal if normal else self._received).matching_rules(path)
        return bool(numbers) and numbers[0] >= 0  # below 0: a loose match

    def match_all(self, forms: "Forms") -> bool:
        """Return whether a path matches in each of its forms."""
        return all(self.match(path, normal=False) for path in forms.received) and all(
            self.match(path, normal=True) for path in forms.normal
        )


class Forms(NamedTuple):
    """The forms of one request's path, as different supported routers read it.

    `received`: the path as received, the path without the leading slashes that Flask, Quart and Falcon drop, and
    a path with empty segments without a slash at its end, which Falcon may drop.
    `normal`: the normalized path, and the path with its slashes merged but its dots kept, as Litestar routes. Each is
    compared with templates in the same form.
    """

    received: Sequence[str]
    normal: Sequence[str]

    @classmethod
    def of(cls, readings: Sequence[str]) -> "Forms":
        """Return all forms, each once. `readings`: the path as received; several if apps may decode it differently."""
        if len(readings) == 1 and is_normal(readings[0]):
            return cls(readings, readings)
        received: dict[str, None] = dict.fromkeys(readings)
        normal: dict[str, None] = {}
        for path in readings:
            merged = merged_path(path)
            one_slash = "/" + path.lstrip("/") if path[:2] == "//" or path[:1] != "/" else path
            for form in (path, one_slash):
                if form[-1:] == "/" and "//" in form:  # Falcon can be set to drop the last slash; see `PathTree`
                    received[form[:-1]] = None
            # the `$` of many routers matches before a final newline
            received |= dict.fromkeys((one_slash, path.rstrip("\n"), one_slash.rstrip("\n")))
            normal |= dict.fromkeys((normal_path(path), merged, merged.rstrip("/\n") or "/"))
        return cls(tuple(received), tuple(normal))


def is_normal(path: str) -> bool:
    """Return whether the path has no empty, `.` or `..` segment, no newline and no slash at the end.

    Every router reads such a path unchanged.
    """
    if path and path[0] == "/" and path[-1] != "/" and "//" not in path and "/." not in path and "\n" not in path:
        return True  # true for nearly all paths, in a third of the time of the pattern
    return _NORMAL.fullmatch(path) is not None


def covers(wide: str, other: str, *, ignore_case: bool = False) -> bool:
    """Return whether `wide` matches every path that `other` matches; False if that is uncertain.

    Both templates must be valid.
    """
    wider, segments = (segments_of(template, ignore_case=ignore_case) for template in (wide, other))
    at = catch_all_index(wider)
    if at is None:
        return len(wider) == len(segments) and all(map(_segment_covers, wider, segments))
    end = len(segments) - (len(wider) - at - 1)  # index of the first segment after {x:path}
    middle = segments[at:end]
    return (
        len(segments) >= len(wider)
        and all(map(_segment_covers, wider[:at], segments[:at]))
        and all(map(_segment_covers, wider[at + 1 :], segments[end:]))
        and _catch_all_covers(wider[at], middle[0], middle[-1], one=len(middle) == 1)
    )


def _catch_all_covers(wide: Segment, first: Segment, last: Segment, *, one: bool) -> bool:
    """Return whether `wide` matches all paths from `first` to `last`, judged by the literal text at both ends."""
    end = last.before if last.converter is None else last.after
    one = one and first.converter is None
    return matches_catch_all(wide.before, wide.after, first.before, end, one=one)


def _segment_covers(wider: Segment, segment: Segment) -> bool:
    if wider.converter is None or segment.converter == "path":
        return wider == segment
    if segment.converter is None:
        return wider.match_level_of(segment.before) > 1
    if wider.converter == "str":
        return segment.before.startswith(wider.before) and segment.after.endswith(wider.after)
    return segment in (wider, wider._replace(converter="int" if wider.converter == "float" else wider.converter))


def normal_path(path: str) -> str:
    """Normalize a path: `//a/./b/../c/` becomes `/a/c`.

    Newlines at the end are dropped too, because Starlette's router ignores them.
    """
    if is_normal(path):
        return path
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            segments[-1:] = []
        elif segment not in ("", "."):
            segments.append(segment)
    while segments and segments[-1].endswith("\n"):
        last = segments.pop().rstrip("\n")
        if last == "..":
            segments[-1:] = []
        elif last not in ("", "."):
            segments.append(last)
    return "/" + "/".join(segments)


def merged_path(path: str) -> str:
    """Merge slashes: `//a/./b/../c/` becomes `/a/./b/../c`."""
    return _SLASHES.sub("/", "/" + path).rstrip("/") or "/"


def _checked_template(place: str, template: object) -> str:
    """Return the template if it can match, in linear time at most. Raises `ConfigError` otherwise."""
    if not isinstance(template, str) or not template.lstrip().startswith("/"):
        raise ConfigError(
            f"{place}: got {template!r}, expected a path that starts with /, such as '/users/{{id}}'", code="RL-026"
        )
    for parameter in PARAMETER.finditer(template):
        if parameter[2] and parameter[2] not in CONVERTERS:
            raise ConfigError(
                f"{place}: got {parameter[0]!r}, expected the converters {', '.join(CONVERTERS)}", code="RL-026"
            )
    text = PARAMETER.sub("x", template)
    if "{" in text or "}" in text:
        raise ConfigError(
            f"{place}: got {template!r}, expected '{{name}}' or '{{name:path}}' as parameter", code="RL-026"
        )
    crowded = any(len(PARAMETER.findall(segment)) > 1 for segment in template.split("/"))
    if crowded or [segment.converter for segment in segments_of(template)].count("path") > 1:
        raise ConfigError(
            f"{place}: got {template!r}, expected at most one parameter between two slashes, and at most one "
            "{name:path}",
            code="RL-026",
        )
    for mistake, allowed in _MISTAKES:
        if re.search(mistake, text):
            raise ConfigError(f"{place}: got {template!r}, expected {allowed}", code="RL-026")
    return template
