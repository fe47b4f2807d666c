"""Runs every scenario in every integration, in this process, with the memory store. Metrics count each step once."""

import pytest

from ratelimit_mw.testing import Clock
from web.faces import FACES
from web.scenario import Scenario
from web.table import ALL_ROWS, play_counted, tell_time


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_the_integration_passes_the_scenario(face: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    play_counted(face, scenario, tell_time(clock, monkeypatch.setattr)(), clock)
