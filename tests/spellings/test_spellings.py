"""Checks that no spelling of a request target reaches an endpoint of a framework without matching its rule."""

import pytest

from profiles import PROOF
from spellings import drive
from spellings.endpoints import EVERY, EXEMPT, TEMPLATES, WITHOUT_RULE, escaped
from spellings.targets import filled, random_targets, seeds, written

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]

PARTS = 20 if PROOF else 1  # the run is split, so that several processes share it
STEP = 1 if PROOF else 8  # each framework gets every eighth of the named spellings
RANDOM = 100_000 // PARTS if PROOF else 300  # targets for each framework and part; at least 3,000 in a run of the tests


@pytest.mark.parametrize("framework", drive.FRAMEWORKS)
def test_each_endpoint_is_reached_by_its_plain_path(framework: str) -> None:
    reached = {name for name, path in EVERY.items() if drive.run(framework, [written(filled(path))]).reached}
    missing = set(EVERY) - reached
    allowed = {
        "litestar": {"edit", "report", "row"},  # no text beside a parameter, or after a path
        "falcon": {"edit"},
        "bottle": {"thing"},  # Bottle has no UUIDs
        "django": {"price"},  # Django has no floats
    }
    assert missing == allowed.get(framework.partition("-")[0], set())


@pytest.mark.parametrize("framework", drive.FRAMEWORKS)
def test_no_named_spelling_evades_a_limit(framework: str) -> None:
    named = [*seeds()][drive.FRAMEWORKS.index(framework) % STEP :: STEP]
    assert drive.run(framework, named).escapes == []


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("framework", drive.FRAMEWORKS)
def test_no_random_spelling_evades_a_limit(framework: str, part: int) -> None:
    seen = drive.run(framework, random_targets(f"{framework} {part}", RANDOM))
    assert seen.escapes == []
    assert seen.reached > RANDOM // 5  # otherwise the changes are so large that routers match few targets


def test_escape_is_detected() -> None:
    assert escaped("login", frozenset({"default"}))
    assert escaped("free", frozenset())
    assert not escaped("login", frozenset({"login", "secret"}))
    assert not escaped("health", frozenset())
    assert {*TEMPLATES, *EXEMPT, *WITHOUT_RULE} == set(EVERY)
