"""Which of many path templates match a path: one walk down a tree, however many templates there are."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}")
CONVERTERS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"\d+",  # of any script, as for Werkzeug's router
    "float": r"\d+(?:\.\d+)?",
    "uuid": r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
}


class Segment(NamedTuple):
    """What stands between two slashes of a template: text, or one parameter with text before and after it."""

    before: str
    converter: str | None = None
    after: str = ""

    def check(self) -> Callable[[str], object]:
        """What says whether a segment of a path matches. Not for `{x:path}`, which may be several."""
        if self == ("", "str", ""):
            return bool
        middle = CONVERTERS[self.converter] if self.converter else ""
        return re.compile(re.escape(self.before) + middle + re.escape(self.after)).fullmatch


class _Node:
    """A place in the tree. There are at most as many as all templates have segments, and a walk sees none twice."""

    __slots__ = ("ends", "literals", "parameters", "rest", "wide")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameters: dict[Segment, tuple[Callable[[str], object], _Node]] = {}  # equal ones share a node
        self.ends: list[int] = []  # the numbers of the templates that end here
        self.rest: _Node | None = None  # where {x:path} comes next: a tree of what follows it, from the end backwards
        self.wide: list[tuple[str, str, int]] = []  # in such a tree: the text around {x:path}, and the number

    def below(self, segments: Iterable[Segment]) -> "_Node":
        """The place where these segments lead from here, made if there is none."""
        node = self
        for segment in segments:
            if segment.converter is None:
                node = node.literals.setdefault(segment.before, _Node())
                continue
            if segment not in node.parameters:
                node.parameters[segment] = (segment.check(), _Node())
            node = node.parameters[segment][1]
        return node


class PathIndex:
    """Path templates, each with the number of its rule; they must be valid (`Paths` says whether they are).

    A look-up costs what the depth of the templates costs, times those that part only after they matched (`/{a}/x` and
    `/{b:int}/y` for `/1`), and a check for each different parameter in one place (`/a-{x}` and `/b-{x}`); not more for
    more templates. `ignore_case`: the text of templates is compared as `re.IGNORECASE` does; parameters are as ever.
    """

    __slots__ = ("_ignore_case", "_root")

    def __init__(self, templates: Iterable[tuple[str, int]], *, ignore_case: bool = False) -> None:
        self._ignore_case = ignore_case
        self._root = _Node()
        for template, number in templates:
            _add(self._root, segments_of(template, ignore_case=ignore_case), number)

    def matching(self, path: str) -> list[int]:
        """The numbers of all rules one of whose templates matches the whole path, ascending, each once."""
        segments = (fold(path) if self._ignore_case else path).split("/")
        nodes = [self._root]
        found: list[int] = []
        for depth, segment in enumerate(segments):
            for node in nodes:
                if node.rest is not None:
                    found += _backwards(node.rest, segments, depth)
            nodes = _deeper(nodes, segment)
            if not nodes:
                break
        for node in nodes:
            found += node.ends
        return found if len(found) < 2 else sorted(set(found))  # noqa: PLR2004  # most paths meet one rule or none


def _add(root: _Node, segments: Sequence[Segment], number: int) -> None:
    at = wide_at(segments)
    node = root.below(segments[:at])
    if at is None:
        node.ends.append(number)
        return
    node.rest = node.rest or _Node()
    node.rest.below(reversed(segments[at + 1 :])).wide.append((segments[at].before, segments[at].after, number))


def _deeper(nodes: list[_Node], segment: str) -> list[_Node]:
    """Where a segment of a path leads."""
    deeper = []
    for node in nodes:
        if (literal := node.literals.get(segment)) is not None:
            deeper.append(literal)
        if node.parameters:
            deeper += [child for accepts, child in node.parameters.values() if accepts(segment)]
    return deeper


def _backwards(root: _Node, segments: list[str], first: int) -> list[int]:
    """The templates below `root` that match when `{x:path}` takes what begins in segment `first`."""
    nodes = [root]
    found = []
    for last in range(len(segments) - 1, first - 1, -1):
        for node in nodes:
            for before, after, number in node.wide:
                if is_wide(before, after, segments[first], segments[last], one=first == last):
                    found.append(number)
        nodes = _deeper(nodes, segments[last])
        if not nodes:
            break
    return found


def is_wide(before: str, after: str, first: str, last: str, *, one: bool) -> bool:
    """Whether `before{x:path}after` matches what begins with one segment and ends with another, or is `one`."""
    long_enough = not one or len(first) >= len(before) + len(after)
    return long_enough and first.startswith(before) and last.endswith(after)


@lru_cache(maxsize=2048)  # to look for rules that hide others, each is read against each
def segments_of(template: str, *, ignore_case: bool = False) -> tuple[Segment, ...]:
    """A valid template, taken apart at its slashes."""
    segments = []
    for text in template.split("/"):
        found = PARAMETER.search(text)
        before, after = (text[: found.start()], text[found.end() :]) if found else (text, "")
        if ignore_case:
            before, after = fold(before), fold(after)
        segments.append(Segment(before, (found[2] or "str") if found else None, after))
    return tuple(segments)


def wide_at(segments: Sequence[Segment]) -> int | None:
    """Where `{x:path}` stands."""
    return next((index for index, segment in enumerate(segments) if segment.converter == "path"), None)


def fold(text: str) -> str:
    """`text` so that letters that differ only in case become equal, as for `re.IGNORECASE`. Each stays one letter.

    Beyond ASCII, `lower()` would let `/log\u0131n` pass by a rule that an app which ignores case reads as `/login`.
    """
    return text.lower() if text.isascii() else "".join(map(_fold, text))


@lru_cache(maxsize=4096)
def _fold(letter: str) -> str:
    upper = letter.upper()
    return (upper if len(upper) == 1 else letter).lower()[0]
