"""Finds from the structure of a regular expression whether matching can take more than linear time.

Only backtracking takes more. Backtracking needs a choice: a place that may read the next character in two ways. A
pattern without choices takes linear time. So does a pattern whose only choice is where its one unbounded repeat ends.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any

_MANY = 64  # repeats with a higher bound than this count as unbounded
_ALL = frozenset(range(0x250)) | {0x663, 0x2028, 0xFF11}  # Latin letters, and a few others that \d and \s match
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_WORD": lambda text: text.isalnum() or text == "_",
}


@dataclass(eq=False)
class Place:
    """A place in a pattern that reads a character. `keeps`: the possessive repeat that contains it, if any."""

    reads: frozenset[int]
    keeps: object = None


@dataclass
class Part:
    """A piece of a pattern: whether it can be empty, and the places where it may begin and end."""

    empty: bool = True
    first: list[Place] = field(default_factory=list)
    last: list[Place] = field(default_factory=list)


class Shape:
    """The places of a pattern, and which places can follow each (Glushkov's automaton)."""

    def __init__(self, parsed: Iterable[Any]) -> None:
        self._follow: dict[Place, list[Place]] = {}
        self._keepers = count()
        self.unbounded = 0  # repeats; a repeat of more than one place counts twice
        self._whole = self._sequence(parsed, None)

    @property
    def chooses(self) -> bool:
        """Whether there is a place where a character may be read in two ways."""
        choices: Sequence[list[Place]] = [self._whole.first, *self._follow.values()]
        return any(_clash(one, other) for places in choices for one, other in combinations(places, 2))

    def _sequence(self, parsed: Iterable[Any], keeps: object) -> Part:
        whole = Part()
        for op, argument in parsed:
            whole = self._joined(whole, self._part(str(op), argument, keeps))
        return whole

    def _joined(self, left: Part, right: Part) -> Part:
        for place in left.last:
            self._follow[place] = [*self._follow.get(place, []), *right.first]
        return Part(
            left.empty and right.empty,
            left.first + (right.first if left.empty else []),
            right.last + (left.last if right.empty else []),
        )

    def _part(self, op: str, argument: Any, keeps: object) -> Part:
        if op == "SUBPATTERN":
            return self._sequence(argument[-1], keeps)
        if op == "ATOMIC_GROUP":
            return self._sequence(argument, keeps)
        if op in ("AT", "ASSERT", "ASSERT_NOT"):
            return Part()
        if op == "BRANCH":
            ways = [self._sequence(way, keeps) for way in argument[1]]
            return Part(
                any(way.empty for way in ways),
                [place for way in ways for place in way.first],
                [place for way in ways for place in way.last],
            )
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, parsed = argument
            return self._repeat(least, most, parsed, next(self._keepers) if op.startswith("POSSESSIVE") else keeps)
        place = Place(_reads(op, argument), keeps)
        return Part(False, [place], [place])

    def _repeat(self, least: int, most: int, parsed: Any, keeps: object) -> Part:
        if most > _MANY:
            part = self._sequence(parsed, keeps)
            self.unbounded += 1 if part.first == part.last and len(part.first) == 1 and not part.empty else 2
            for place in part.last:
                self._follow[place] = [*self._follow.get(place, []), *part.first]
            return Part(part.empty or not least, part.first, part.last)
        whole = Part()
        for number in range(most):
            part = self._sequence(parsed, keeps)
            whole = self._joined(whole, Part(part.empty or number >= least, part.first, part.last))
        return whole


def _clash(one: Place, other: Place) -> bool:
    kept = one.keeps != other.keeps  # a possessive repeat always matches as much as possible, so there is no choice
    return not kept and bool(one.reads & other.reads)  # also if one place is reached in two ways


def _reads(op: str, argument: Any) -> frozenset[int]:
    if op == "LITERAL":
        return frozenset({argument})
    if op == "NOT_LITERAL":
        return _ALL - {argument}
    if op == "ANY":
        return _ALL - {10}
    if op == "RANGE":
        return frozenset(range(argument[0], argument[1] + 1))
    if op == "CATEGORY":
        name = str(argument)
        known = _CATEGORIES[name.replace("_NOT_", "_")]
        return frozenset(code for code in _ALL if known(chr(code)) is ("_NOT_" not in name))
    assert op == "IN", op
    negated = str(argument[0][0]) == "NEGATE"
    reads: frozenset[int] = frozenset().union(*[_reads(str(one), what) for one, what in argument[negated:]])
    return _ALL - reads if negated else reads


def is_linear(pattern: str) -> bool:
    """Whether `match` and `fullmatch` take time in proportion to the length of the text, for any text."""
    parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]  # no public function parses a pattern
    (op, argument), *more = [*parsed] or [("AT", None)]
    ways = argument[1] if str(op) == "BRANCH" and not more else [parsed]  # a choice at the start is made once
    shapes = [Shape(way) for way in ways]
    return all(not shape.chooses or shape.unbounded <= 1 for shape in shapes)
