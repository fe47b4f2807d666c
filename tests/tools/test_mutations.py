"""The list of mutations fits the package, and its runner tells one that survives."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import ratelimit_mw
from mutations.__main__ import main
from mutations.listing import PACKAGE, ROOT, Mutation, load
from mutations.runner import run
from ratelimit_mw import bucket, delay
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.stores import group, slots

MUTATIONS = load()
INSTALLED = Path(ratelimit_mw.__file__).parent
DECIDING = [Path(str(module.__file__)).relative_to(INSTALLED).as_posix() for module in (bucket, delay, group, slots)]
DECIDING += [
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.lua")
    if path.stem in ("bucket", "head", "take", "settle")  # what algorithms and stores share
]
DECIDING += [f"algorithms/{name}{suffix}" for name in SCRIPTED for suffix in (".py", ".lua")]
TEST = "tests/stores/test_suite.py::TestMemoryStore::test_a_clock_that_steps_back_refills_nothing"
REFILLS = Mutation(
    1,
    "algorithms/token_bucket.py",
    "a clock that steps back refills",
    "drained = (now - state.updated) * drain",
    "drained = abs(now - state.updated) * drain",
    (TEST,),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_each_can_be_applied(mutation: Mutation) -> None:
    assert mutation.apply(PACKAGE)
    assert [test for test in mutation.tests if not (ROOT / test.partition("::")[0]).is_file()] == []


def test_each_stands_for_a_defect_of_its_own() -> None:
    assert len({(mutation.file, mutation.why) for mutation in MUTATIONS}) == len(MUTATIONS) >= 20


@pytest.mark.parametrize("file", DECIDING)
def test_what_decides_is_mutated(file: str) -> None:
    assert file in {mutation.file for mutation in MUTATIONS}


def told(mutations: Sequence[Mutation]) -> tuple[int, list[str]]:
    """The exit code, and what is said, without the seconds and what tests print."""
    lines: list[str] = []
    code = run(mutations, jobs=2, say=lines.append)
    return code, [re.sub(r" \(\d+\.\d s\)$", "", line) for line in "\n".join(lines).splitlines()]


def test_all_killed_is_success() -> None:
    assert told([REFILLS]) == (
        0,
        [
            f"without a mutation, {TEST}: passes",
            f" 1 algorithms/token_bucket.py: a clock that steps back refills: killed by {TEST}",
            "1 of 1 killed",
        ],
    )


def test_one_that_survives_is_named_and_so_is_one_that_does_not_run() -> None:
    harmless = replace(REFILLS, number=2, why="a comment", old="# refused too, else", new="# refused too: else")
    breaks = replace(REFILLS, number=3, why="a typo", old="def decide(", new="def decides(")
    lost = replace(REFILLS, number=4, why="no Python", old="def decide(", new="def decide")
    code, said = told([harmless, REFILLS, breaks, lost])
    assert code == 1
    assert " 2 algorithms/token_bucket.py: a comment: SURVIVED" in said
    assert f" 1 algorithms/token_bucket.py: a clock that steps back refills: killed by {TEST}" in said
    assert any(line.startswith(" 3 algorithms/token_bucket.py: a typo: ERROR, does not run: ") for line in said)
    assert " 4 algorithms/token_bucket.py: no Python: ERROR, exit code 1" in said
    assert said[-4:] == [
        "not killed:  2 algorithms/token_bucket.py: a comment",
        "not killed:  3 algorithms/token_bucket.py: a typo",
        "not killed:  4 algorithms/token_bucket.py: no Python",
        "1 of 4 killed",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("stood here once", "", "'stood here once' stands there 0 times, allowed is once"),
        ("TokenBucket(", "Bucket(", "'TokenBucket(' stands there 2 times, allowed is once"),
        ("drained = (now", "drained = (now", "it changes nothing"),
    ],
)
def test_a_list_that_no_longer_fits_is_an_error(old: str, new: str, problem: str) -> None:
    stale = replace(REFILLS, old=old, new=new)
    assert told([REFILLS, stale]) == (1, [f" 1 algorithms/token_bucket.py: a clock that steps back refills: {problem}"])


def test_tests_that_fail_without_a_mutation_are_an_error() -> None:
    code, said = told([replace(REFILLS, tests=("tests/test_that_is_gone.py",))])
    assert code == 1
    assert said[0].startswith("without a mutation, tests/test_that_is_gone.py: ERROR, pytest says ")


def test_one_that_is_not_there_cannot_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "perfection"])
    assert "--only perfection: no such mutation" in capsys.readouterr().err
