"""Tests that the list of mutations fits the package, and that the runner reports a surviving mutation."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import ratelimit_mw
from mutations import matching
from mutations.__main__ import main
from mutations.listing import PACKAGE, ROOT, Mutation, load
from mutations.runner import run
from ratelimit_mw.algorithms import SCRIPTED, bucket
from ratelimit_mw.algorithms import bucket as delay
from ratelimit_mw.stores import group
from ratelimit_mw.stores.redis import hash_slots

MUTATIONS = load()
INSTALLED = Path(ratelimit_mw.__file__).parent
DECIDING = [
    Path(str(module.__file__)).relative_to(INSTALLED).as_posix() for module in (bucket, delay, group, hash_slots)
]
DECIDING += [
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.lua")
    if path.stem in ("bucket", "head", "take", "settle")  # shared by algorithms and stores
]
DECIDING += [f"algorithms/{name}{suffix}" for name in SCRIPTED for suffix in (".py", ".lua")]
DECIDING.remove("algorithms/token_bucket.py")  # it decides in bucket.py
TEST = "tests/stores/test_suite.py::TestMemoryStore::test_a_clock_that_steps_back_refunds_no_units"
REFILLS = Mutation(
    1,
    "algorithms/bucket.py",
    "a clock that steps back refills",
    "return level, True",
    "return 0, True",
    (TEST,),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_each_mutation_can_be_applied(mutation: Mutation) -> None:
    assert mutation.apply(PACKAGE)
    assert [test for test in mutation.tests if not (ROOT / test.partition("::")[0]).is_file()] == []


def without_prose(source: str) -> str:
    """Return the code of a source, without its format, comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def in_other_prose(source: str) -> str:
    """Return a source with other docstrings, a comment at the end of each line, and more space between tokens."""
    out, docstrings = [], matching.docstrings(source)
    for match in matching.TOKEN.finditer(source):
        text = match[0]
        if text.startswith("#"):
            text = "# other prose"
        elif match["space"] and not text.startswith("\\"):
            text = f"  # other prose{text}" if "\n" in text else 2 * text
        elif match.start() in docstrings:
            text = '"""Other prose."""'
        out.append(text)
    return "".join(out)


def other_prose(file: str, folder: Path) -> None:
    """Write a file of the package in other prose."""
    source = (PACKAGE / file).read_text("utf-8")
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(in_other_prose(source), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package")


@pytest.mark.parametrize("file", sorted({mutation.file for mutation in MUTATIONS if mutation.file.endswith(".py")}))
def test_python_mutations_apply_despite_other_prose(file: str, folder: Path) -> None:
    """All find their fragment. One of them is compared: changing a fragment by its tokens is the same for all."""
    other_prose(file, folder)
    one, *others = [mutation for mutation in MUTATIONS if mutation.file == file]
    assert without_prose(one.apply(folder)) == without_prose(one.apply(PACKAGE))
    assert all(mutation.apply(folder) for mutation in others)


SOURCE = '''
class Bucket:
    """Holds units."""

    def take(self, cost):
        if cost > self.level:  # too much
            return self.refused(
                cost,
            )
        else:
            self.level -= cost
        return None

    def peek(self, cost):
        return self.refused(cost)
'''


@pytest.mark.parametrize(
    ("old", "new", "within", "line"),
    [
        ("if cost>self.level:\n    return", "if cost:\n    return", "", "        if cost:\n            return self"),
        ("level : return self.refused(cost)", "level: return None", "", "        if cost > self.level: return None"),
        ("\n    else:\n        self.level  -= cost", "", "", "            )\n        \n        return None"),
        ("self.refused(cost)", "None", "Bucket.take", "            return None\n        else"),
        ("self.refused(cost)", "None", "peek", "        return None\n"),
        ("if  cost > self.level:", "if cost:  # now", "take", "        if cost:  # now  # too much"),
    ],
)
def test_fragment_is_found_despite_other_formatting(old: str, new: str, within: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SOURCE, "utf-8")
    changed = Mutation(1, "sample.py", "", old, new, (), within).apply(tmp_path)
    assert line in changed
    ast.parse(changed)


@pytest.mark.parametrize(
    ("old", "within", "times"),
    [
        ("self . refused", "", "'self . refused' is there 2 times"),
        ("self . refused", "Bucket", "'self . refused' is there 2 times"),
        ("self.level", "Bucket.peek", "'self.level' is there 0 times"),
        ("self.level", "Bucket.drop", "Bucket.drop is there 0 times"),
        ("Holds  units", "", "'Holds  units' is there 0 times"),
        ("# too  much", "", "'# too  much' is there 0 times"),
    ],
)
def test_fragment_must_occur_exactly_once(old: str, within: str, times: str, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SOURCE, "utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{times}, not once")):
        Mutation(1, "sample.py", "", old, "pass", (), within).apply(tmp_path)


def test_mutations_represent_different_defects() -> None:
    assert len({(mutation.file, mutation.why) for mutation in MUTATIONS}) == len(MUTATIONS) >= 20


@pytest.mark.parametrize("file", DECIDING)
def test_each_deciding_file_is_mutated(file: str) -> None:
    assert file in {mutation.file for mutation in MUTATIONS}


def told(mutations: Sequence[Mutation]) -> tuple[int, list[str]]:
    """Run mutations. Return the exit code and the lines of output, without the seconds."""
    lines: list[str] = []
    code = run(mutations, jobs=2, say=lines.append)
    return code, [re.sub(r" \(\d+\.\d s\)$", "", line) for line in "\n".join(lines).splitlines()]


def test_run_succeeds_if_all_mutations_are_killed() -> None:
    assert told([REFILLS]) == (
        0,
        [
            f" 1 algorithms/bucket.py: a clock that steps back refills: killed by {TEST}",
            "1 of 1 killed",
        ],
    )


def test_run_names_mutations_that_survive_or_do_not_run() -> None:
    harmless = replace(REFILLS, number=2, why="a comment", old="# also if refused", new="# even if refused")
    breaks = replace(REFILLS, number=3, why="a typo", old="def decide(", new="def decides(")
    lost = replace(REFILLS, number=4, why="no Python", old="def decide(", new="def decide")
    code, said = told([harmless, REFILLS, breaks, lost])
    assert code == 1
    assert " 2 algorithms/bucket.py: a comment: SURVIVED" in said
    assert f" 1 algorithms/bucket.py: a clock that steps back refills: killed by {TEST}" in said
    assert any(line.startswith(" 3 algorithms/bucket.py: a typo: ERROR, does not run: ") for line in said)
    assert " 4 algorithms/bucket.py: no Python: ERROR, exit code 1" in said
    assert said[-4:] == [
        "not killed:  2 algorithms/bucket.py: a comment",
        "not killed:  3 algorithms/bucket.py: a typo",
        "not killed:  4 algorithms/bucket.py: no Python",
        "1 of 4 killed",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("stood here once", "", "'stood here once' is there 0 times, not once"),
        ("_admit_later(", "_admit(", "'_admit_later(' is there 2 times, not once"),
        ("return level, True", "return level, True", "it changes nothing"),
    ],
)
def test_mutation_that_no_longer_applies_is_an_error(old: str, new: str, problem: str) -> None:
    stale = replace(REFILLS, old=old, new=new)
    assert told([REFILLS, stale]) == (1, [f" 1 algorithms/bucket.py: a clock that steps back refills: {problem}"])


def test_a_test_that_is_gone_is_an_error() -> None:
    code, said = told([replace(REFILLS, tests=("tests/test_that_is_gone.py",))])
    assert code == 1
    assert said[0].startswith(" 1 algorithms/bucket.py: a clock that steps back refills: ERROR, pytest says ")


def test_a_test_that_fails_without_a_mutation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_OLDEST", "starlette 0.1")
    code, said = told([replace(REFILLS, tests=("tests/test_versions.py",))])
    assert code == 1
    assert said[1].startswith("without a mutation: tests/test_versions.py::")


def test_the_test_that_killed_a_mutation_runs_first() -> None:
    killers = {REFILLS.name: TEST}
    assert run([replace(REFILLS, tests=("tests/test_that_is_gone.py",))], jobs=1, killers=killers, say=str) == 0
    killers[REFILLS.name] = "tests/test_that_is_gone.py"
    assert run([REFILLS], jobs=1, killers=killers, say=str) == 0
    assert killers == {REFILLS.name: TEST}


def test_choice_of_an_unknown_mutation_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "perfection"])
    assert "--only perfection: no such mutation" in capsys.readouterr().err
