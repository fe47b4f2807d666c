"""Fixtures for the codes of messages: most tests compare texts without codes; test_messages.py tests the codes."""

import re
from collections.abc import Iterator

import pytest

from ratelimit_mw.core import errors, log
from ratelimit_mw.engine import refusal_log

_USERS = (errors, log, refusal_log)
_WITH_CODE = errors.with_code


@pytest.fixture(scope="session", autouse=True)
def without_codes() -> Iterator[None]:
    """Remove the codes from the messages of this process."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _USERS:
            patch.setattr(module, "with_code", lambda text, _: text)
        yield


@pytest.fixture
def with_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the codes to the messages, as users see them."""
    for module in _USERS:
        monkeypatch.setattr(module, "with_code", _WITH_CODE)


def plain(text: str) -> str:
    """Return the output of another process without codes."""
    return re.sub(r" \[RL-\d{3}\]", "", text)
