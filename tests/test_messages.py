"""Each ConfigError, warning and log line ends with a code, and docs/reference/messages.md explains each code."""

import ast
import logging
import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import ratelimit_mw
from checking import Check, check_in
from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.log import Finding, warn, warn_or_fail, warn_throttled
from ratelimit_mw.settings import Settings

pytestmark = pytest.mark.usefixtures("with_codes")

PACKAGE = Path(ratelimit_mw.__file__).parent
PAGE = Path(__file__).resolve().parent.parent / "docs/reference/messages.md"
MAKERS = ("ConfigError", "ConfigTypeError", "Finding", "info", "warn", "warn_throttled", "with_code")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
CODE = re.compile(r"RL-\d{3}")
MAX_LENGTH = 300  # characters, not counting values: two lines of a wide terminal

# calls without a code: the text already has a code, or a caller passes the code
UNCODED = {
    "admin/buckets.py": 1,  # messages about missing keys, which have codes
    "admin/commands.py": 1,
    "algorithms/notation.py": 1,  # puts the limit's text before the problem
    "cli/check.py": 1,  # puts file and line before the problems
    "core/errors.py": 3,  # with_prefix, raise_if_any, with_code
    "core/log.py": 5,  # the functions themselves
    "django/middleware.py": 1,  # puts the view before the problem
    "django/throttle.py": 1,  # puts the scope of a rate before the problem
    "flask/__init__.py": 1,  # puts the key of app.config before the problems
    "replay/run.py": 1,  # puts file and line before the problems
    "rules/rule_set.py": 1,  # puts the endpoint before the problem
    "settings/__init__.py": 1,  # problems with environment variables
    "settings/features.py": 1,  # puts the penalty before the problem
}
# calls of a logger: the ConfigError of a failed start; info, warn, warn_throttled (twice) and warn_or_fail; the
# traceback of a failed reload
DIRECT_LOGS = {"asgi/send.py": 1, "core/log.py": 5, "engine/refusal_log.py": 1, "engine/reload.py": 1}


class Use(NamedTuple):
    """A call that makes a message."""

    path: str
    call: ast.Call
    code: str | None


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def code_of(call: ast.Call) -> str | None:
    values = [word.value for word in call.keywords if word.arg == "code"]
    if name_of(call) == "with_code":
        values = call.args[1:2]
    found = values[0].value if values and isinstance(values[0], ast.Constant) else None
    return found if isinstance(found, str) and CODE.fullmatch(found) else None


@cache  # not read when the tests are collected: each process of a run collects all
def calls() -> list[tuple[str, ast.Call]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    """All calls that make a message."""
    return [Use(path, call, code_of(call)) for path, call in calls() if name_of(call) in MAKERS]


HEADINGS = re.findall(r"^### (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
RETIRED = {heading[:6] for heading in HEADINGS if heading.endswith("(retired)")}
EXPLAINED = [heading[:6] for heading in HEADINGS]


def test_each_message_has_a_code(uses: list[Use]) -> None:
    assert Counter(use.path for use in uses if use.code is None) == UNCODED


def test_each_line_is_logged_by_a_function_that_adds_the_code() -> None:
    direct = [
        path
        for path, call in calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and "logg" in ast.unparse(call.func.value)
    ]
    assert Counter(direct) == DIRECT_LOGS


def test_the_page_explains_each_code_once(uses: list[Use]) -> None:
    assert set(EXPLAINED) - RETIRED == {use.code for use in uses if use.code}
    assert all(re.fullmatch(r"RL-\d{3}: .+", heading) for heading in HEADINGS)


def test_codes_are_in_order_without_gaps() -> None:
    """A gap means that a code was removed from the page, and another message could get the same code."""
    numbers = [int(code[3:]) for code in EXPLAINED]
    assert numbers[0] == 1
    assert all(after == before + 1 or after in {101, 201} for before, after in pairwise(numbers))
    assert numbers == sorted(set(numbers))


def test_first_digit_of_a_code_matches_the_kind_of_message(uses: list[Use]) -> None:
    """Errors are below RL-100, warnings at start-up below RL-200."""
    for use in uses:
        kind, code = name_of(use.call), use.code or ""
        if code and kind != "warn":
            block = {"ConfigError": "0", "ConfigTypeError": "0", "Finding": "1"}.get(kind, "2")
            assert code[3] == block, f"{use.path}:{use.call.lineno}"


def test_message_texts_are_single_lines_of_limited_length(uses: list[Use]) -> None:
    for use in uses:
        texts = [
            node.value
            for argument in use.call.args
            for node in ast.walk(argument)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not any("\n" in text for text in texts), f"{use.path}:{use.call.lineno}"
        assert sum(map(len, texts)) <= MAX_LENGTH, f"{use.path}:{use.call.lineno}"


def test_each_problem_of_an_error_ends_with_its_code() -> None:
    mistakes = ErrorCollector()
    with mistakes.collect("rules[0]"):
        raise ConfigError("path: required", code="RL-026")
    with mistakes.collect():
        raise ConfigError("limits: required", "key: wrong", code="RL-002")
    with pytest.raises(ConfigError) as caught:
        mistakes.raise_if_any()
    assert caught.value.problems == (
        "rules[0].path: required [RL-026]",
        "limits: required [RL-002]",
        "key: wrong [RL-002]",
    )


def test_error_with_a_nested_mistake_has_only_the_inner_code() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(limits="5/minut")
    assert str(caught.value).endswith("month, year) [RL-011]")
    assert str(caught.value).count("[RL-") == 1


def test_log_lines_end_with_their_codes(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    caplog.set_level(logging.WARNING)
    warn("store: back after %.1f seconds", 1.5, code="RL-203")
    warn_throttled("settle", "lost: %s", "100 %", code="RL-206")
    findings = [Finding("weak", code="RL-124"), Finding("slow", code="RL-118", weakens_limits=False)]
    with pytest.raises(ConfigError, match=r"^weak \[RL-124\]$"):
        warn_or_fail(findings, strict=True)
    assert caplog.messages == [
        "ratelimit_mw: store: back after 1.5 seconds [RL-203]",
        "ratelimit_mw: settle: lost: 100 % [RL-206]",
        "ratelimit_mw: slow [RL-118]",
    ]


def test_check_prints_the_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check: Check = check_in(tmp_path, monkeypatch, capsys)
    lines = check("limits = '5/minute'\nstore_timeout = 50\n").splitlines()
    assert [line[-8:] for line in lines[1:]] == ["[RL-118]"]
