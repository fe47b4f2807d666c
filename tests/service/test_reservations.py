"""Reservations of the decision service: each is ended once, by any process over its store."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from ratelimit_mw.testing import Clock, RecordingStore
from service.calls import call, made

HOUR: dict[str, Any] = {"limits": "100/hour using fixed_window", "key": "model"}


def left(app: Any) -> int:
    """Return the units that are left of the limit."""
    remaining: int = call(app, "/v1/peek", HOUR).json()["remaining"]
    return remaining


def two(clock: Clock) -> tuple[Any, Any]:
    """Return two services over one store, as two processes have."""
    store = RecordingStore(clock=clock)
    return made(store=store), made(store=store)


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [("commit", {"actual": 7}, 93), ("commit", {"actual": 150}, 0), ("commit", {}, 60), ("cancel", {}, 100)],
)
def test_a_reservation_is_ended_once_by_any_process(path: str, more: dict[str, int], expected: int) -> None:
    one, other = two(Clock())
    reserved = call(one, "/v1/reserve", {**HOUR, "cost": 40}).json()
    assert (reserved["allowed"], reserved["remaining"], left(other)) == (True, 60, 60)
    assert call(other, f"/v1/{path}", {"id": reserved["id"], **more}).status_code == 200
    assert left(one) == expected
    for again in ("commit", "cancel"):
        for app in (one, other):
            assert call(app, f"/v1/{again}", {"id": reserved["id"]}).status_code == 409
    assert left(one) == expected


def test_a_refused_reservation_has_no_id_and_takes_nothing() -> None:
    app, _ = two(Clock())
    answer = call(app, "/v1/reserve", {**HOUR, "cost": 101}).json()
    assert (answer["id"], answer["allowed"], left(app)) == (None, False, 100)


def test_a_reservation_that_ends_by_itself_stays_charged_and_cannot_be_ended() -> None:
    clock = Clock()
    app, _ = two(clock)
    reserved = call(app, "/v1/reserve", {**HOUR, "cost": 40, "ttl": 60}).json()
    clock.advance(60)
    assert [call(app, "/v1/cancel", {"id": reserved["id"]}).status_code for _ in range(3)] == [404, 409, 409]
    assert left(app) == 60


def test_a_changed_or_invented_id_is_unknown() -> None:
    app, _ = two(Clock())
    text = call(app, "/v1/reserve", {**HOUR, "cost": 40}).json()["id"]
    body = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    changed = [body.replace(b",40,", b",99,"), body.replace(b"model", b"other"), body[:2] + b"0000" + body[6:], b"[]"]
    for one in changed:
        answer = call(app, "/v1/cancel", {"id": urlsafe_b64encode(one).decode()})
        assert answer.status_code == 404, one
    assert left(app) == 60


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": 86_401}, {"cost": -1}, {"cost": 2**53}])
def test_invalid_reservations_are_rejected(wrong: dict[str, Any]) -> None:
    assert call(made(), "/v1/reserve", {**HOUR, **wrong}).status_code == 400
