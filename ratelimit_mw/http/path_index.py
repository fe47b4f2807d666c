"""Finds the path templates that match a path in one walk down a tree, however many templates there are."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}")
CONVERTERS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"\d+",  # digits of any script, as in Werkzeug's router
    "float": r"\d+(?:\.\d+)?",
    "uuid": r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
}


_PATTERNS: Final = {name: re.compile(pattern) for name, pattern in CONVERTERS.items()}
_WHOLE_FLOAT = re.compile(r"\s*\+?[+-]?[\d_]+\.0*\s*")  # Pydantic accepts "7.0" as an int
_MAX_EXAMINED: Final = 64  # characters of a number or UUID that are examined; bounds the work for each template
_LAST_CASED: Final = 0x20000  # no code point from here on has two cases
_NO, _LOOSELY, _EXACTLY = range(3)


class Segment(NamedTuple):
    """A segment of a template: literal text, or one parameter with text before and after it."""

    before: str
    converter: str | None = None
    after: str = ""

    def match_level_of(self, text: str, *, empty: bool = False) -> int:
        """Return how this parameter matches a segment of a path: `_NO`, `_LOOSELY` or `_EXACTLY`.

        `_LOOSELY` means that some supported routers accept the segment and others do not. `empty`: an empty
        segment is a loose match too, as in Falcon's router. Not for `{x:path}`.
        """
        if not self.before and not self.after:
            return (
                _EXACTLY if text and self.converter == "str" else self._match_converter(text, 0, len(text), empty=empty)
            )
        if text.startswith(self.before):
            start, end = len(self.before), len(text) - len(self.after)
            if start <= end and text.endswith(self.after) and (level := self._match_converter(text, start, end)):
                return level
            if text.endswith(self.after + "\n") and start < end and self._match_converter(text, start, end - 1):
                return _LOOSELY  # because `$` in some routers matches before a final newline
        return _NO

    def _match_converter(self, text: str, start: int, end: int, *, empty: bool = False) -> int:
        if start == end:
            return _LOOSELY if empty and self.converter == "str" else _NO
        if self.converter == "str":
            return _EXACTLY
        return _LOOSELY if end - start > _MAX_EXAMINED else match_level(str(self.converter), text[start:end])


@lru_cache(maxsize=1024)
def match_level(converter: str, text: str) -> int:
    """Return how a converter of numbers or UUIDs matches a short text: `_NO`, `_LOOSELY` or `_EXACTLY`."""
    if _PATTERNS[converter].fullmatch(text):
        return _EXACTLY
    if converter == "int" and _WHOLE_FLOAT.fullmatch(text):
        return _LOOSELY
    with suppress(ValueError):
        _PARSERS[converter](text)
        return _LOOSELY
    return _NO


_PARSERS: Final = {"int": int, "float": float, "uuid": UUID}  # as Litestar and Falcon convert


_ANY: Final = Segment("", "str")


class Leaf:
    """Where paths end that the same rules match. `rules`: their numbers, in order. `ways`: for the user of the tree."""

    __slots__ = ("rules", "ways")

    def __init__(self, rules: Iterable[int] = ()) -> None:
        self.rules: Final = tuple(sorted(set(rules)))
        self.ways: Final[dict[Any, Any]] = {}


class _Node:
    """A node of the tree. There are at most as many nodes as segments. A walk visits each node at most once."""

    __slots__ = ("catch_all_ends", "catch_all_root", "ends", "leaf", "literals", "other", "parameters", "steps")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameters: dict[Segment, _Node] = {}  # equal parameters share a node
        self.ends: tuple[int, ...] = ()  # numbers of the templates that end here
        # The root of a second tree, if {x:path} comes next. It has the segments after {x:path}, from last to first.
        self.catch_all_root: _Node | None = None
        # in that second tree: the text before and after {x:path}, and the number of the template
        self.catch_all_ends: tuple[tuple[str, str, int], ...] = ()
        # The way of `PathTree.leaf`: where a path that ends here ends, the next node by segment, and that of all other
        # segments. `prepare` sets them.
        self.leaf: Leaf | None = None
        self.steps: dict[str, _Node]
        self.other: _Node

    @classmethod
    def end_of_all(cls, ends: tuple[int, ...], leaf: Leaf | None) -> "_Node":
        """Return a node where all paths end that reach it, because each step leads to itself."""
        node = cls()
        node.ends, node.leaf, node.steps, node.other = ends, leaf, {}, node
        return node

    def prepare(self, outside: "_Node") -> "_Node":
        """Set the way of `PathTree.leaf`, once all templates are in the tree.

        `outside`: where paths end that leave the tree here. Its templates are those whose `{x:path}` begins above this
        node, and matches all paths through it. Returns the same for the nodes below, which share it: only a garbage
        collection frees a node that refers to itself.
        """
        self.leaf = Leaf((*outside.ends, *self.ends)) if self.ends else outside.leaf
        child = self.parameters.get(_ANY)
        is_simple = len(self.parameters) == (child is not None)
        if (root := self.catch_all_root) is not None:
            is_whole = all(not text and not after for text, after, _ in root.catch_all_ends)
            is_simple &= is_whole and not root.literals and not root.parameters
            ends = (*outside.ends, *[number for _, _, number in root.catch_all_ends])
            outside = _Node.end_of_all(ends, Leaf(ends))
        if not is_simple:
            self.steps, self.other = {}, _UNDECIDED
        elif child is not None:
            self.steps, self.other = dict.fromkeys(("", *self.literals), _UNDECIDED), child
        else:
            self.steps, self.other = self.literals, outside
        return outside

    def descend(self, segments: Iterable[Segment]) -> "_Node":
        """Return the node that these segments lead to, and create missing nodes on the way."""
        node = self
        for segment in segments:
            if segment.converter is None:
                child = node.literals.get(segment.before) or node.literals.setdefault(segment.before, _Node())
            else:
                child = node.parameters.get(segment) or node.parameters.setdefault(segment, _Node())
            node = child
        return node


_UNDECIDED: Final = _Node.end_of_all((), None)


class _Positions:
    """The nodes that a walk has reached. `loose`: nodes behind at least one loose match."""

    __slots__ = ("exact", "loose")

    def __init__(self, exact: list[_Node], loose: list[_Node]) -> None:
        self.exact = exact
        self.loose = loose

    def __bool__(self) -> bool:
        return bool(self.exact or self.loose)

    def catch_all_roots(self) -> "Iterator[_Positions]":
        """Yield the roots of the trees of segments after `{x:path}`."""
        for node in self.exact:
            if node.catch_all_root is not None:
                yield _Positions([node.catch_all_root], [])
        for node in self.loose:
            if node.catch_all_root is not None:
                yield _Positions([], [node.catch_all_root])

    def step(self, segment: str, *, empty: bool) -> "_Positions":
        """Return the nodes that the next segment of the path leads to."""
        exact: list[_Node] = []
        loose: list[_Node] = []
        for node in self.exact:
            if (literal := node.literals.get(segment)) is not None:
                exact.append(literal)
            if node.parameters:
                for parameter, child in node.parameters.items():
                    if level := parameter.match_level_of(segment, empty=empty):
                        (exact if level == _EXACTLY else loose).append(child)
        for node in self.loose:
            if (literal := node.literals.get(segment)) is not None:
                loose.append(literal)
            loose += [
                child for parameter, child in node.parameters.items() if parameter.match_level_of(segment, empty=empty)
            ]
        return _Positions(exact, loose)


class PathTree:
    """An index of path templates, each with the number of its rule. `Paths` must have validated them.

    The cost of a lookup does not depend on the number of templates. It grows with their depth, with the branches that
    match at the same time (`/{a}/x` and `/{b:int}/y` for `/1`), and with the different parameters of one node (`/a-{x}`
    and `/b-{x}`). The check of a segment examines the text around the parameter and at most 64 characters.
    `ignore_case`: compares literal text as `re.IGNORECASE` does; parameters match as before. `empty`: whether `{x}`
    loosely matches an empty segment.
    """

    __slots__ = ("_depth", "_ignore_case", "_root", "empty")

    def __init__(self, templates: Iterable[tuple[str, int]], *, ignore_case: bool = False) -> None:
        self._ignore_case = ignore_case
        self.empty = False
        if ignore_case:
            _odd_letters()  # fill the cache at start-up, not during a request
        self._root = _Node()
        self._depth = 0  # the most segments of a template
        for template, number in templates:
            segments = segments_of(template, ignore_case=ignore_case)
            self._depth = max(self._depth, len(segments))
            _add(self._root, segments, number)
        nodes = [(self._root, _Node.end_of_all((), Leaf()))]
        while nodes:
            node, outside = nodes.pop()
            below = node.prepare(outside)
            nodes += [(child, below) for child in (*node.literals.values(), *node.parameters.values())]

    @classmethod
    def from_rules(cls, templates: Iterable[Iterable[str]], *, ignore_case: bool = False) -> "PathTree":
        """Index the templates of several rules. A rule's number is its index in `templates`."""
        pairs = ((template, number) for number, of_rule in enumerate(templates) for template in of_rule)
        return cls(pairs, ignore_case=ignore_case)

    def matching_rules(self, path: str) -> Sequence[int]:
        """Return the numbers of the rules that match the whole path, in order, each once.

        A rule n that matches only loosely, in some routers but not in all, is returned as ~n.
        """
        if (leaf := self.leaf(path)) is not None:
            return leaf.rules
        segments = (fold(path) if self._ignore_case else path).split("/")
        places = _Positions([self._root], [])
        matches: list[int] = []
        loose: list[int] = []
        for depth, segment in enumerate(segments):
            for root in places.catch_all_roots():
                self._match_backwards(root, segments, depth, matches, loose)
            places = places.step(segment, empty=self.empty)
            if not places:
                break
        for node in places.exact:
            matches += node.ends
        for node in places.loose:
            loose += node.ends
        exact = set(matches)
        return sorted([*exact, *(~number for number in set(loose) - exact)], key=lambda number: max(number, ~number))

    def leaf(self, path: str) -> Leaf | None:
        """Return where a path ends, if each segment leads to one node only.

        It takes a fifth of the time of the general walk, and is enough for most tables. Returns None if the general
        walk must decide: if literal text and a parameter can both match a segment, or if a parameter is neither `{x}`
        nor a last `{x:path}`.
        """
        node = self._root
        for segment in (fold(path) if self._ignore_case else path).split("/", self._depth):
            node = node.steps.get(segment, node.other)
        return node.leaf

    def _match_backwards(
        self, places: _Positions, segments: list[str], first: int, matches: list[int], loose: list[int]
    ) -> None:
        """Add the templates that match if `{x:path}` begins in segment `first`."""
        for last in range(len(segments) - 1, first - 1, -1):
            for nodes, numbers in ((places.exact, matches), (places.loose, loose)):
                for node in nodes:
                    for before, after, number in node.catch_all_ends:
                        if matches_catch_all(before, after, segments[first], segments[last], one=first == last):
                            numbers.append(number)
            places = places.step(segments[last], empty=self.empty)
            if not places:
                break


def _add(root: _Node, segments: Sequence[Segment], number: int) -> None:
    at = catch_all_index(segments)
    node = root.descend(segments[:at])
    if at is None:
        node.ends += (number,)
        return
    node.catch_all_root = node.catch_all_root or _Node()
    end = node.catch_all_root.descend(reversed(segments[at + 1 :]))
    end.catch_all_ends += ((segments[at].before, segments[at].after, number),)


def matches_catch_all(before: str, after: str, first: str, last: str, *, one: bool) -> bool:
    """Return whether `before{x:path}after` matches from segment `first` to `last`. `one`: they are the same segment."""
    long_enough = not one or len(first) >= len(before) + len(after)
    return long_enough and first.startswith(before) and last.endswith(after)


@lru_cache(maxsize=2048)  # the start-up check for shadowed rules compares all pairs of templates
def segments_of(template: str, *, ignore_case: bool = False) -> tuple[Segment, ...]:
    """Split a valid template at its slashes."""
    segments = []
    for text in template.split("/"):
        parameter = PARAMETER.search(text)
        before, after = (text[: parameter.start()], text[parameter.end() :]) if parameter else (text, "")
        if ignore_case:
            before, after = fold(before), fold(after)
        segments.append(Segment(before, (parameter[2] or "str") if parameter else None, after))
    return tuple(segments)


def catch_all_index(segments: Sequence[Segment]) -> int | None:
    """Return the index of `{x:path}`, if the template has one."""
    return next((index for index, segment in enumerate(segments) if segment.converter == "path"), None)


def fold(text: str) -> str:
    """Fold the case of `text` as `re.IGNORECASE` does, one letter to one letter.

    `lower()` is not enough beyond ASCII: a router that ignores case reads `/log\u0131n` as `/login`, so rules must too.
    """
    if text.isascii():
        return text.lower()
    odd = _odd_letters()
    for letter in odd.keys() & set(text):
        text = text.replace(letter, odd[letter])
    return text.lower()


@cache
def _odd_letters() -> dict[str, str]:
    """Return the letters that `lower()` does not fold as `re.IGNORECASE` does, with their replacements."""
    folds = {"\u03a3": "\u03c3"}  # for sigma, lower() depends on the letters around it
    for letter in map(chr, range(128, _LAST_CASED)):
        upper = letter.upper()
        folded = (upper if len(upper) == 1 else letter).lower()[0]
        if folded != letter.lower():
            folds[letter] = folded
    return folds
