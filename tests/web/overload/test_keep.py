"""`keep` of a rule: its requests leave a part of `app_limits` to others."""

from typing import Any

import pytest

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from web.faces import FACES
from web.scenario import Step

BATCH: dict[str, Any] = {"path": "/b/{rest:path}", "limits": [], "keep": "40%", "name": "batch"}
SETTINGS: dict[str, Any] = {"limits": [], "app_limits": "10/minute using fixed_window", "rules": [BATCH]}


@pytest.mark.parametrize("face", FACES)
def test_a_rule_leaves_a_part_of_app_limits_to_others(face: str) -> None:
    send = FACES[face](SETTINGS)

    assert [send(Step(path="/b/1")).status for _ in range(7)] == [200] * 6 + [429]
    assert [send(Step(path="/")).status for _ in range(5)] == [200] * 4 + [429]


def test_the_largest_part_counts_if_several_rules_match() -> None:
    all_paths = {"path": "/{rest:path}", "limits": [], "keep": "20%", "name": "all", "final": False}
    send = FACES["asgi"]({**SETTINGS, "rules": [all_paths, BATCH]})

    assert [send(Step(path="/b/1")).status for _ in range(7)] == [200] * 6 + [429]
    assert [send(Step(path="/")).status for _ in range(3)] == [200] * 2 + [429]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"app_limits": []}, "there are no app_limits to keep a part of"),
        (
            {"app_limits": "10/minute using smooth"},
            "40% of 10/60s using smooth leaves no request of this rule a chance",
        ),
        (
            {"app_limits": "1/minute using fixed_window"},
            "40% of 1/60s using fixed_window leaves no request of this rule a chance",
        ),
    ],
)
def test_a_part_that_cannot_be_kept_stops_the_start(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RuleSet(Settings(**{**SETTINGS, **settings}))

    assert str(raised.value) == f"rules[0] (batch).keep: {message}"


def test_a_part_that_leaves_one_unit_can_be_kept() -> None:
    """One of two units is kept, so that the rule may use the other."""
    RuleSet(Settings(**{**SETTINGS, "app_limits": "2/minute using fixed_window"}))
