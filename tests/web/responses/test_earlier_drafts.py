"""Each integration sends the fields of earlier drafts, once, on admitted and on refused requests."""

from typing import Any

import pytest

from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.scenario import Step

POLICY = ("ratelimit-policy", "2;w=60")
EXPECTED: dict[str, list[list[tuple[str, str]]]] = {
    "draft-6": [
        [("ratelimit-limit", "2"), POLICY, ("ratelimit-remaining", f"{left}"), ("ratelimit-reset", "60")]
        for left in (1, 0, 0)
    ],
    "draft-7": [[("ratelimit", f"limit=2, remaining={left}, reset=60"), POLICY] for left in (1, 0, 0)],
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("style", EXPECTED)
def test_the_integration_sends_the_fields_of_an_earlier_draft(face: str, style: Any) -> None:
    store = RecordingStore(clock=Clock())
    send = FACES[face]({"limits": "2/minute using fixed_window", "headers": style, "store": store})
    answers = [send(Step()) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    fields = [sorted(pair for pair in answer.headers if pair[0].startswith("ratelimit")) for answer in answers]
    assert fields == EXPECTED[style]
    assert answers[2].field("retry-after") == ["60"]
