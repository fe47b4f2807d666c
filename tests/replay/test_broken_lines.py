"""Tests that a replay counts each broken line and raises nothing: 2,500 lines of each format."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.replay import replay
from ratelimit_mw.replay.formats import format_of
from replay.documented import (
    ALB,
    APACHE_MILLISECONDS,
    CADDY,
    CLOUDFRONT,
    CLOUDFRONT_FIELDS,
    COMBINED,
    COMMON,
    ENVOY,
    ENVOY_JSON,
)
from replay.replayed import FIELDS, FORMAT, requests

LENGTH = 2500
(ONE,) = requests(3, 1)
LINES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "common": ({"format": "common"}, [COMMON]),
    "combined": ({"format": "combined"}, [COMBINED]),
    "caddy": ({"format": "caddy"}, [json.dumps(CADDY)]),
    "envoy": ({"format": "envoy"}, [ENVOY]),
    "envoy in JSON": ({"format": "envoy"}, [json.dumps(ENVOY_JSON)]),
    "alb": ({"format": "alb"}, [ALB]),
    "cloudfront": ({"format": "cloudfront"}, [CLOUDFRONT, CLOUDFRONT, CLOUDFRONT_FIELDS]),
    "json": ({"fields": FIELDS}, [ONE.json]),
    "nginx": ({"format": FORMAT}, [ONE.line]),
    "apache": (
        {"format": APACHE_MILLISECONDS},
        ['10/Oct/2000 13:55:36.120 -0700 127.0.0.1 "GET /apache_pb.gif HTTP/1.0" 200'],
    ),
}
PIECES = ('"', " ", "\t", "\\", "[", "]", "{", "}", ":", ",", "-", "/", "%", "9" * 30, "\x00", "\xff", "null", "1e999")


def broken(dice: random.Random, line: str) -> str:
    """Return a line in which a few parts are cut out, doubled, or replaced."""
    for _ in range(dice.randrange(1, 4)):
        start, end = sorted(dice.choices(range(len(line) + 1), k=2))
        end = min(end, start + dice.choice((0, 1, 5, 400)))
        line = line[:start] + dice.choice(("", line[start:end] * 2, *PIECES)) + line[end:]
    return line


@pytest.mark.parametrize("name", LINES)
def test_broken_lines_are_counted_and_do_not_stop_a_replay(name: str, tmp_path: Path) -> None:
    form, good = LINES[name]
    dice = random.Random(name)  # noqa: S311  # lines
    lines = [broken(dice, dice.choice(good)) for _ in range(LENGTH)]
    log = tmp_path / "access.log"
    log.write_bytes("".join(f"{line}\n" for line in [good[-1], *lines]).encode("latin-1"))
    settings = {"limits": "5/minute", "trusted_proxies": ["10.0.0.0/8"], "rules": [{"path": "/x", "limits": "1/hour"}]}
    report = replay(settings, log, **form, suggest=True)
    counted = [line for line in lines if line.strip() and not (name == "cloudfront" and line.startswith("#"))]
    assert report.lines - (name != "cloudfront") == len(counted)
    assert LENGTH / 10 < report.unread < LENGTH
    assert 0 < report.requests <= report.lines - report.unread


@pytest.mark.parametrize("digits", [309, 4300, 4301])  # more than a double holds, and than `int` and `str` convert
@pytest.mark.parametrize("field", ["status", "duration", "ts"])
def test_numbers_of_many_digits_do_not_stop_a_replay(field: str, digits: int, tmp_path: Path) -> None:
    for value in ("9" * digits, f'"{"9" * digits}"'):
        log = tmp_path / "access.log"
        broken_line = json.dumps(CADDY | {field: "VALUE"}).replace('"VALUE"', value)
        log.write_text(f"{json.dumps(CADDY)}\n{broken_line}\n")
        report = replay({"limits": "5/minute", "count_status": [200]}, log, format="caddy")
        assert report.lines == 2
        assert report.requests + report.unread == 2


@pytest.mark.parametrize("name", LINES)
def test_broken_lines_do_not_stop_the_choice_of_a_format(name: str) -> None:
    form, good = LINES[name]
    dice = random.Random(name)  # noqa: S311  # lines
    for _ in range(50):
        lines = [broken(dice, dice.choice(good)) for _ in range(20)]
        log = format_of(form.get("format"), form.get("fields", {}), lines)
        log.has_value("header:cookie")
        for record in log.read(lines).records:
            assert len(record) == 5 + len(log.names)


RECOGNIZED = {
    "common": ["common"],
    "combined": ["combined", "common"],  # `common` also reads a line of `combined` without its end
    "caddy": ["caddy"],
    "envoy": ["envoy"],
    "envoy in JSON": ["envoy"],
    "alb": ["alb"],
    "cloudfront": ["cloudfront"],
}


@pytest.mark.parametrize("name", RECOGNIZED)
def test_format_is_recognized_among_broken_lines(name: str) -> None:
    _, good = LINES[name]
    dice = random.Random(name)  # noqa: S311  # lines
    for _ in range(50):
        lines = [*good, *(broken(dice, dice.choice(good)) for _ in range(20))]
        assert format_of(None, {}, lines).name in RECOGNIZED[name]


@pytest.mark.parametrize(("broken_lines", "name"), [(0, "combined"), (1, "combined"), (2, "common")])
def test_combined_is_chosen_despite_few_broken_lines(broken_lines: int, name: str) -> None:
    """`common` reads all lines, but not the user agents."""
    good = LINES["combined"][1][0]
    lines = [good] * (10 - broken_lines) + [COMMON] * broken_lines
    assert format_of(None, {}, lines).name == name


@pytest.mark.parametrize("name", ["json", "apache"])
def test_custom_format_is_not_recognized_among_broken_lines(name: str) -> None:
    _, good = LINES[name]
    dice = random.Random(name)  # noqa: S311  # lines
    for _ in range(50):
        with pytest.raises(ConfigError, match="was not recognized by its first lines"):
            format_of(None, {}, [*good, *(broken(dice, dice.choice(good)) for _ in range(20))])
