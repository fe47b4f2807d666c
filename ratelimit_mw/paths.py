"""Path templates, and the two forms in which a path is matched."""

import re
from collections.abc import Sequence
from typing import Final

from ratelimit_mw.errors import ConfigError

_NORMAL = re.compile(
    r"/|(?:/(?!\.{1,2}(?:/|\Z))[^/\n]+)+"
)  # no empty, "." or ".." segment, no newline, no slash at the end
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}")
_CONVERTERS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
}


class Paths:
    """One path template or several, compiled. Raises `ConfigError` naming the place.

    Every path is looked at in two forms, as received and as normalised, and each is matched by the template in the
    same form: so `/login/` in a rule means the app's `/login/`, and its normal form `/login` too.
    """

    __slots__ = ("_normal", "_received", "always_two")

    def __init__(self, place: str, value: object) -> None:
        if not isinstance(value, str) and (not isinstance(value, Sequence) or not value):
            raise ConfigError(f"{place}: found {value!r}, allowed is a path such as '/users/{{id}}' or a list of these")
        templates = (
            [(place, value)]
            if isinstance(value, str)
            else [(f"{place}[{index}]", one) for index, one in enumerate(value)]
        )
        self._received = [_pattern(*template) for template in templates]
        self._normal = [_pattern(where, normal_path(template)) for where, template in templates]
        self.always_two = self._received != self._normal  # then even a path in normal form has two forms

    def match(self, path: str, *, normal: bool) -> bool:
        """Whether `path`, in its normal form or as received, is one of these."""
        return any(pattern.fullmatch(path) for pattern in (self._normal if normal else self._received))


def normal_path(path: str) -> str:
    """`//a/./b/../c/` as `/a/c`; and without newlines at the end, which Starlette's router does not see either."""
    if _NORMAL.fullmatch(path):
        return path
    segments: list[str] = []
    for raw in path.split("/"):
        segment = raw.rstrip("\n")
        if segment == "..":
            segments[-1:] = []
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def _pattern(place: str, template: object) -> re.Pattern[str]:
    if not isinstance(template, str) or not template.startswith("/"):
        raise ConfigError(f"{place}: found {template!r}, allowed is a path that starts with /, such as '/users/{{id}}'")
    parts, end = [], 0
    for found in _PARAMETER.finditer(template):
        converter = found[2] or "str"
        if converter not in _CONVERTERS:
            raise ConfigError(f"{place}: found {found[0]!r}, allowed are the converters {', '.join(_CONVERTERS)}")
        parts += [re.escape(template[end : found.start()]), _CONVERTERS[converter]]
        end = found.end()
    text = template[end:]
    if "{" in "".join(parts[::2]) + text or "}" in "".join(parts[::2]) + text:
        raise ConfigError(f"{place}: found {template!r}, allowed is '{{name}}' or '{{name:path}}' as parameter")
    crowded = any(len(_PARAMETER.findall(segment)) > 1 for segment in template.split("/"))
    if crowded or parts.count(_CONVERTERS["path"]) > 1:  # matching these takes quadratic time, for a path made for it
        raise ConfigError(
            f"{place}: found {template!r}, allowed is one parameter between slashes, and one {{name:path}}"
        )
    return re.compile("".join([*parts, re.escape(text)]), re.DOTALL)
