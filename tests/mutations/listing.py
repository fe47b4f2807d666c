"""Loads the list of mutations: what each changes, and the tests that must fail with it."""

import tomllib
from pathlib import Path
from typing import Final

from msgspec import Struct, convert, field

from mutations.matching import replaced, span_of

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "ratelimit_mw"
LIST: Final = Path(__file__).with_name("mutations.toml")
KILLERS: Final = Path(__file__).with_name("killers.json")  # by the name of a mutation, the test that killed it last


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that replaces another."""

    why: str  # the defect that it represents
    old: str
    new: str
    within: str = field(name="in", default="")  # the function or class that has `old`: "function", "Class.method"


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """The mutations of one file."""

    file: str  # in the package
    tests: tuple[str, ...]  # in the order in which they run: quick to kill, or deterministic, first
    changes: tuple[Change, ...]


class Mutation(Struct, frozen=True):
    """A change with its file and tests."""

    number: int
    file: str
    why: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    @property
    def name(self) -> str:
        """What no other mutation has, even if more are added before it."""
        return f"{self.file}: {self.why}"

    def __str__(self) -> str:
        return f"{self.number:2} {self.name}"

    def apply(self, package: Path) -> str:
        """Return the text of the file with the change.

        `old` is searched as text first, then, in Python files, by its tokens. Raises ValueError unless it occurs
        exactly once, and if `new` is the same.
        """
        text = (package / self.file).read_text("utf-8")
        if self.new == self.old:
            raise ValueError("it changes nothing")
        start, end = span_of(text, self.within) if self.within else (0, len(text))
        times = text.count(self.old, start, end)
        if times == 0 and self.file.endswith(".py"):
            return replaced(text, self.old, self.new, (start, end))
        if times != 1:
            raise ValueError(f"{self.old!r} is there {times} times, not once")
        return text[:start] + text[start:end].replace(self.old, self.new) + text[end:]


def load(path: Path = LIST) -> list[Mutation]:
    """Return all mutations, numbered from 1."""
    parts = convert(tomllib.loads(path.read_text("utf-8"))["part"], list[Part])
    pairs = [(part, change) for part in parts for change in part.changes]
    return [
        Mutation(number, part.file, change.why, change.old, change.new, part.tests, change.within)
        for number, (part, change) in enumerate(pairs, 1)
    ]
