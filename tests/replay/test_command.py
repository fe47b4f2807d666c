"""Tests what scripts rely on: the shape of `--json`, the exit code, and equal output for any number of `--jobs`."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw.cli import main
from replay.replayed import FORMAT, combined, requests, write

LIMITS = 'limits = "9/minute"\nkey = "ip"\n[[rules]]\nname = "login"\npath = "/login"\nlimits = "5/minute; 20/hour"\n'


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (path := tmp_path / "limits.toml").write_text(LIMITS)
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = main(["replay", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_json_output_has_fixed_fields(settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "access.log"
    lines = [combined(at % 50, f"192.0.2.{at % 3}") for at in range(120)]
    log.write_text("".join(sorted(lines, key=lambda line: line.split("[")[1])) + "no line\n")
    code, found = printed(capsys, settings, log, "--suggest")
    assert code == 0  # one unread line of 121
    assert (found["lines"], found["unread"], found["shown"]) == (121, 1, ["no line"])
    assert {*found} == {
        *("lines", "unread", "rules", "suggested"),
        *("requests", "refused", "first", "last", "shown", "late", "notes", "empty_reason"),
    }
    (login, default) = found["rules"]
    assert login == {"rule": "login", "requests": 0, "refused": 0, "clients": 0, "most": [], "shadow": False}
    assert default == {
        "rule": "default",
        "requests": 120,
        "refused": 93,
        "clients": 3,
        "most": default["most"],
        "shadow": False,
    }
    assert [(one["client"], one["refused"]) for one in default["most"]] == [(f"192.0.2.{n}", 31) for n in range(3)]
    assert {*default["most"][0]} == {"client", "refused", "first", "last", "statuses", "path", "agents"}
    assert [one["window"] for one in found["suggested"]] == [1.0, 10.0, 60.0, 600.0, 3600.0]
    assert {key for one in found["suggested"] for key in one} == {
        *("rule", "key", "window", "half", "most", "all", "gap", "honest", "clients", "requests"),
        *("quota", "limit", "touched", "refused", "recommended", "victims", "offices"),
    }
    assert printed(capsys, settings, log)[1]["suggested"] == []


@pytest.mark.parametrize(("unread", "code"), [(0, 0), (1, 0), (2, 1), (100, 1)])
def test_command_fails_if_over_a_hundredth_of_the_lines_is_unread(
    unread: int, code: int, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.log"
    log.write_text(combined(0, "192.0.2.1") * (100 - unread) + "no line\n" * unread)
    found = printed(capsys, settings, log, "--format", "combined")
    assert (found[0], found[1]["lines"], found[1]["unread"]) == (code, 100, unread)
    assert found[1]["shown"] == ["no line"] * min(3, unread)


def test_jobs_print_equal_json(settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write(tmp_path / f"{number}.log", requests(number, 1500)) for number in (1, 2)]
    words = ("replay", str(settings), *map(str, logs), "--format", FORMAT, "--suggest", "--json")
    texts = []
    for jobs in (1, 4):
        assert main([*words, "--jobs", str(jobs)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert min(rule["refused"] for rule in json.loads(texts[0])["rules"]) > 50


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('limits = "9/minute"\nkey = "all"\n', "limits: the key 'all' spans clients, which --jobs divides"),
        ('limits = "9/minute"\nkey = "route"\n', "limits: the key 'route' spans clients, which --jobs divides"),
        (
            f'app_limits = [{{limit = "9/second", key = "all"}}]\n{LIMITS}',
            "app_limits: the key 'all' spans clients, which --jobs divides",
        ),
        (
            f'{LIMITS}key = "all"\n',
            "rules[0] (login): the key 'all' spans clients, which --jobs divides",
        ),
    ],
)
def test_jobs_are_refused_if_a_key_spans_clients(
    text: str, problem: str, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text(text)
    log = write(tmp_path / "access.log", requests(3, 100))
    words = ["replay", str(settings), str(log), "--format", FORMAT, "--json"]
    assert main([*words, "--jobs", "4"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problem in captured.err
    assert main([*words, "--jobs", "1"]) == 0
