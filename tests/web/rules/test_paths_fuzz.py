"""Compares the index of templates with a regular expression for each template, and `covers` with both."""

import re
from collections import defaultdict

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ratelimit_mw.http.path_index import CONVERTERS, PARAMETER, PathTree, fold
from ratelimit_mw.http.paths import Paths, covers, normal_path

UUID = "123e4567-e89b-12d3-a456-426614174000"
LIGATURES = "\u0390\u1fd3\u03b0\u1fe3\ufb05\ufb06"  # pairs that re.IGNORECASE treats as equal, unlike `fold`

# few, so that drawn texts often match; some differ only in case, or are a prefix or suffix of another
TEXTS = ["", "a", "A", "ab", "b", "1", "12", "1.5", ".", "..", "\n", "a\n", "%2e", ":a", "+(", "\u00e9", "\u00c9"]
TEXTS += ["\u0131", "I", "\u0130", "s", "\u017f", "\u212a", "k", "\u03a3", "\u03b1\u03c2", "\u0667", UUID, UUID.upper()]
texts = st.sampled_from(TEXTS)
around = st.sampled_from(["", "", "", "", "a", "b", "ab", ".", "1", "S", "\u03c2"])
parameters = st.builds(
    lambda before, converter, after: f"{before}{{x{converter}}}{after}",
    around,
    st.sampled_from(["", ":str", ":int", ":float", ":uuid"]),
    around,
)
wides = st.builds(lambda before, after: f"{before}{{x:path}}{after}", around, around)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Draw any valid template, or one that `Paths` refuses although it could be matched."""
    parts = draw(st.lists(texts | parameters, min_size=1, max_size=4))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), draw(wides))
    return "/" + "/".join(parts)


@st.composite
def filled(draw: st.DrawFn, template: str, *, with_parameters: bool = False) -> str:
    """Draw a path from the template: its parameters are replaced, mostly by valid values."""

    def fill(found: re.Match[str]) -> str:
        if with_parameters and draw(st.booleans()):
            return found[0]
        fits = {"int": ["7", "12"], "float": ["7", "1.5"], "uuid": [UUID]}.get(found[2] or "str")
        if fits and draw(st.integers(0, 5)):
            return draw(st.sampled_from(fits))
        several = st.lists(texts, max_size=3).map("/".join)
        return draw(several if found[2] == "path" else texts)

    return PARAMETER.sub(fill, template)


@st.composite
def paths_near(draw: st.DrawFn, near: list[str]) -> str:
    """Draw a path that one of the templates matches or nearly matches, or any path."""
    path = draw(filled(draw(st.sampled_from([*near, "/{x}/{x}", "/{x:path}"]))))
    change = draw(st.sampled_from(["", "", "", "case", "insert", "cut"]))
    at = draw(st.integers(0, len(path)))
    if change == "case":
        return path.swapcase()
    if change == "insert":
        return path[:at] + draw(st.sampled_from(["/", "\n", "/.", "x", "1"])) + path[at:]
    return path[:at] + path[at + 1 :] if change == "cut" else path


def pattern(template: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Return a regular expression for what a template matches."""
    parts, end = [], 0
    flag = "i" if ignore_case else ""
    for found in PARAMETER.finditer(template):
        parts += [f"(?{flag}:{re.escape(template[end : found.start()])})", CONVERTERS[found[2] or "str"]]
        end = found.end()
    return re.compile("".join([*parts, f"(?{flag}:{re.escape(template[end:])})"]), re.DOTALL)


def matching(given: list[tuple[str, int]], path: str, *, ignore_case: bool) -> list[int]:
    """Return the same as `PathTree.matching_rules`, by trying each template."""
    patterns = [(pattern(template, ignore_case=ignore_case), number) for template, number in given]
    return sorted({number for compiled, number in patterns if compiled.fullmatch(path)})


def exactly(index: PathTree, path: str) -> list[int]:
    """Return the rules whose templates match exactly, without those that match in some routers only."""
    return [number for number in index.matching_rules(path) if number >= 0]


@pytest.mark.promise(10)
@given(st.data(), st.booleans())
def test_the_index_finds_the_same_rules_as_a_regex_per_template(data: st.DataObject, ignore_case: bool) -> None:
    given = data.draw(st.lists(st.tuples(templates(), st.integers(0, 9)), min_size=1, max_size=12))
    index = PathTree(given, ignore_case=ignore_case)
    for path in data.draw(st.lists(paths_near([template for template, _ in given]), min_size=1, max_size=8)):
        found = exactly(index, path)
        event(f"{len(found)} rules")
        assert found == matching(given, path, ignore_case=ignore_case), path


@given(st.lists(templates(), max_size=5), st.text(alphabet="/aAb.1\n%\u0130\u00df\U00010400\ud800", max_size=12))
def test_the_index_accepts_any_text_as_a_path(given: list[str], path: str) -> None:
    numbered = list(zip(given, range(len(given)), strict=True))
    for ignore_case in (False, True):
        index = PathTree(numbered, ignore_case=ignore_case)
        assert exactly(index, path) == matching(numbered, path, ignore_case=ignore_case)


@pytest.mark.promise(10)
@given(st.data(), st.booleans())
def test_a_covering_template_matches_every_path_of_the_covered_one(data: st.DataObject, ignore_case: bool) -> None:
    earlier = data.draw(templates())
    later = data.draw(filled(earlier, with_parameters=True) | templates())
    if len(PARAMETER.findall(later)) > 1 and later.count(":path}") > 1:
        return
    path = data.draw(paths_near([later]))
    covered = covers(earlier, later, ignore_case=ignore_case)
    event(f"covered: {covered}")
    if covered and matching([(later, 0)], path, ignore_case=ignore_case):
        event("covered and matched")
        assert PathTree([(earlier, 0)], ignore_case=ignore_case).matching_rules(path)[0] == 0


@given(templates(), st.booleans())
def test_a_template_is_covered_by_itself_and_by_the_wildcard(template: str, ignore_case: bool) -> None:
    assert covers(template, template, ignore_case=ignore_case)
    assert covers("/{rest:path}", template, ignore_case=ignore_case)
    assert covers(template, template.replace("{x", "{another"), ignore_case=ignore_case)


@pytest.mark.promise(10)
@given(st.data())
def test_each_form_of_a_path_is_matched_by_the_same_form_of_the_template(data: st.DataObject) -> None:
    template = data.draw(templates().filter(lambda one: not re.search(r"/:a|%2e|\n", one)))
    paths = Paths("path", template)
    path = data.draw(paths_near([template]))
    normal = normal_path(path)
    assert normal_path(normal) == normal
    assert paths.match(path, normal=False) == bool(pattern(template).fullmatch(path))
    assert paths.match(normal, normal=True) == bool(pattern(normal_path(template)).fullmatch(normal))


def test_fold_equates_the_same_letters_as_re_except_ligatures() -> None:
    every = {chr(code): fold(chr(code)) for code in range(0x20000)}  # no letter beyond these has two cases
    cased = "".join(letter for letter, folded in every.items() if folded != letter or letter.swapcase() != letter)
    alike = defaultdict(set)
    for letter in cased:
        alike[every[letter]].add(letter)
    odd = {one for one in cased if set(re.compile(re.escape(one), re.IGNORECASE).findall(cased)) != alike[every[one]]}
    assert odd == set(LIGATURES)
    assert all(len(folded) == 1 and every[folded] == folded for folded in every.values())
    assert not [letter for letter in cased if not letter.isascii() and every[letter] in "/0123456789abcdef-."]


@given(st.text(), st.text())
def test_fold_converts_each_letter_independently(one: str, two: str) -> None:
    assert fold(one + two) == fold(one) + fold(two)
