"""Every scenario over every framework, as an app is that has run for a while."""

import pytest

from ratelimit_mw import matching
from ratelimit_mw.testing import Clock
from web.faces import FACES
from web.scenario import Scenario
from web.table import ALL_ROWS, play, tell_time


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_scenario(
    face: str,
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is after the first thousand: where only the client's address counts, nothing else is looked at."""
    monkeypatch.setattr(matching, "Unproxied", lambda: None)
    clock = Clock()
    store = tell_time(clock, monkeypatch.setattr)()
    play(face, scenario, store, clock)
