"""Tests that the targets of `tox -e atheris` accept their seeds, and seeds with a few changed bytes."""

from random import Random

import pytest

from parsers.targets import SEEDS, TARGETS

BYTES = b'/.,;="[]:% \t\n\r\0{}a1\xff\xc3'


@pytest.mark.parametrize("name", TARGETS)
def test_target_accepts_its_seeds_and_changed_seeds(name: str) -> None:
    random = Random(name)  # noqa: S311  # the same each time, and no secret
    for seed in [b"", *SEEDS[name]]:
        TARGETS[name](seed)
        for _ in range(300):
            changed = bytearray(seed)
            for _ in range(random.randint(1, 4)):
                place = random.randint(0, len(changed))
                changed[place : place + random.randint(0, 2)] = random.choices(BYTES, k=random.randint(0, 3))
            TARGETS[name](bytes(changed))


def test_every_target_has_seeds() -> None:
    assert [*TARGETS] == [*SEEDS]
