"""Tests the output of `python -m ratelimit_mw check` for broken files, and for files that cause startup warnings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ratelimit_mw
from checking import Check, check_in, command
from message_codes import plain
from ratelimit_mw.cli import main

pytestmark = pytest.mark.promise(9)

BROKEN = Path(__file__).resolve().parent / "broken_settings"
PERIODS = "(us, ms, second, minute, hour, day, week, month, year)"
KEYS = "ip, ip/24/56, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +"

MISTAKES: dict[str, list[str]] = {
    "misspelt_setting.toml": ["unknown setting `trusted_proxy`: did you mean `trusted_proxies`?"],
    "misspelt_period.toml": [
        f"rules[0].limits[0]: '10/minut': unknown period 'minut', did you mean 'minute'? {PERIODS}",
    ],
    "rule_without_path.toml": ["rules[0] (login).path: required, such as '/login' or '/{rest:path}'"],
    "lower_case_method.toml": [
        "rules[0].methods[0]: got 'post', expected a method in upper case, such as 'POST'",
    ],
    "networks_too_wide.toml": [
        (
            "trusted_proxies[0]: got '0.0.0.0/0', which is every address, expected a network such as '10.0.0.0/8' or "
            "an address such as '192.0.2.1' or 'unix:'"
        ),
        (
            "safelist[1]: got '::ffff:10.0.0.0/8', which holds every IPv4 address, expected an IPv4 network: "
            "'10.0.0.0/8'"
        ),
        (
            "safelist[2]: got '192.168.1.7/24', which has host bits, expected '192.168.1.0/24', or '192.168.1.7' "
            "for that address alone"
        ),
    ],
    "impossible_key.toml": [
        f"key: got 'user or ip', did you mean 'user | ip'?; expected {KEYS}",
        f"rules[0].key: got 'header: X-Api-Key', did you mean 'header:X-Api-Key'?; expected {KEYS}",
        (
            "rules[0].limits.key: got 'call:nowhere.to:be_found', expected call:PACKAGE.MODULE:FUNCTION of a "
            "function that can be imported: ModuleNotFoundError: No module named 'nowhere'"
        ),
    ],
    "same_name_twice.toml": ["rules[1] (api).name: 'api' is also the name of rules[0]; choose another name"],
    "cost_above_quota.toml": [
        "rules[0].cost: 50 can never pass 20/3600s using sliding_window_counter, which admits at most 20 at once",
    ],
    "tiers_without_tier.toml": [
        "limits: got limits by tier (free, pro), which need `tier`: a key that names the tier, such as 'header:X-Plan'"
    ],
    "syntax_error.toml": [r"invalid TOML: Illegal character '\n' (at line 1, column 21)"],
    "wrong_types.json": [
        "limits: got 100, expected text such as '100/minute', a Limit, a table or a list of these",
        (
            "rules: got {'path': '/login', 'limits': '5/minute'}, expected a list of tables or Rules; "
            "in TOML each begins with [[rules]]"
        ),
        "ipv6_prefix: got '64', expected a whole number from 32 to 128",
        "exempt: got 'health', expected a path that starts with /, such as '/users/{id}'",
        "store_timeout: got '50ms', expected a finite number of seconds, 0 or more",
        "enabled: got 'true', expected true or false",
    ],
    "several_mistakes.toml": [
        "unknown setting `limit`: did you mean `limits`?",
        "limits: required, such as '100/minute'; [] means no limits",
        "rules[0]: unknown setting `metods`: did you mean `methods`?",
        "rules[0].path: got 'login', expected a path that starts with /, such as '/users/{id}'",
        "rules[0].limits[0]: unknown setting `keys`: did you mean `key`?",
        "rules[0].limits[1].cost: got '2', expected a whole number from 0 to 9007199254740991",
        "rules[1].path: got '/users/<id>', expected '{id}' or '{id:int}' as parameter",
        "rules[1].when: got 'is_staff', expected a callable, or call:PACKAGE.MODULE:FUNCTION",
        (
            "rules[1].limits: '10 per minut using token_buket': unknown algorithm 'token_buket', did you mean "
            "'token_bucket'? (fixed_window, sliding_window_counter, sliding_window_log, token_bucket, gcra, "
            "leaky_bucket, smooth, calendar_window)"
        ),
        "on_store_error: got 'open', expected one of allow, deny, local",
        (
            "store: got the scheme 'reddis', did you mean 'redis'?; expected memory://, sqlite://, redis://, "
            "rediss://, unix://, redis+cluster://, rediss+cluster://, redis+sentinel://, rediss+sentinel://"
        ),
    ],
}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    return check_in(tmp_path, monkeypatch, capsys)


LINES = {  # lines of the mistakes in each file; 0 if none is shown
    "cost_above_quota.toml": [5],
    "impossible_key.toml": [2, 6, 7],
    "lower_case_method.toml": [5],
    "misspelt_period.toml": [5],
    "misspelt_setting.toml": [2],
    "networks_too_wide.toml": [2, 3, 3],
    "rule_without_path.toml": [3],
    "same_name_twice.toml": [9],
    "several_mistakes.toml": [1, 0, 7, 6, 8, 8, 11, 13, 12, 3, 2],
    "tiers_without_tier.toml": [1],
}


@pytest.mark.parametrize("name", sorted(path.name for path in BROKEN.iterdir()))
def test_check_prints_each_mistake_of_a_broken_file(name: str) -> None:
    done = command("check", name, folder=BROKEN)
    mistakes = MISTAKES[name]
    count = f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}"
    lines = LINES.get(name, [0] * len(mistakes))
    places = [f"{name}:{number}" if number else name for number in lines]
    told = [f"{place}: {mistake}" for place, mistake in zip(places, mistakes, strict=True)]
    assert plain(done.stdout).splitlines() == [*told, f"{name}: {count}"]
    assert (done.returncode, done.stderr) == (1, "")


def test_table_of_mistakes_has_every_broken_file() -> None:
    assert set(MISTAKES) == {path.name for path in BROKEN.iterdir()}


def test_check_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('limits = "5/minute"\n[[rules]]\npath = "/login"\nlimits = "5/hour"\n')
    assert main(["check", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["rules"], found["mistakes"], found["code"]) == (str(file), ["login"], [], 0)
    file.write_text('limits = "5/minuet"\n')
    assert main(["check", str(file), "--json"]) == 1
    [mistake] = json.loads(capsys.readouterr().out)["mistakes"]
    assert mistake.startswith(f"{file}:1: limits: ")


def test_check_reports_a_missing_file() -> None:
    done = command("check", "nowhere.toml", folder=BROKEN)
    text = f"nowhere.toml: [Errno 2] No such file or directory: 'nowhere.toml', in the folder {BROKEN}"
    assert plain(done.stdout).splitlines()[0] == text
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ('limits = "5/minute"', []),
        (
            'limits = "5/minute"\nkey = "header:X-Api-Key"\n'
            + "".join(f'[[rules]]\nname = "{name}"\npath = "/a"\nlimits = "9/hour"\nkey = "ip"\n' for name in "ab"),
            [
                (
                    "rules[1] (b) can never match: rules[0] (a) is final and matches all of its requests; put it "
                    "before that one, or set final = false there"
                ),
                (
                    "rule default: its key, header:X-Api-Key, is written by the client, which can use a new one for "
                    "each request; add a limit with another key, or app_limits"
                ),
            ],
        ),
        (
            'limits = "300/hour using fixed_window; 10000/hour using fixed_window"',
            [
                (
                    "rule default: 10000/3600s using fixed_window never refuses what 300/3600s using fixed_window "
                    "admits; remove it, or make it the smaller one"
                ),
            ],
        ),
        (
            'limits = "5/minute"\nstore = "redis+cluster://localhost:7000"',
            [
                (
                    "store: in a cluster without key_secret, a client that can choose its identity can choose its "
                    "slot, and so put all load on one node; set key_secret"
                ),
            ],
        ),
    ],
)
def test_check_prints_startup_warnings(settings: str, warnings: list[str], check: Check) -> None:
    first, *lines = check(settings).splitlines()
    count = f"{len(warnings) or 'no'} warning{'' if len(warnings) == 1 else 's'}"
    assert first == f"limits.toml: no mistakes; {settings.count('[[rules]]') or 0} rules, {count}"
    assert lines == [f"  {warning}" for warning in warnings]


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        (
            'store = "redis://localhost:port"',
            "store: the URL cannot be read: the port is not a number from 0 to 65535, expected",
        ),
        ('on_refused = "call:shop_of_check:one"', "on_refused: got 'call:shop_of_check:one', expected an ASGI app"),
        (
            'on_refused = "call:shop_of_check:wsgi_app"\nkey = "call:shop_of_check:plan"',
            "key: got plan, which is async; expected a plain function under WSGI",
        ),
        ('on_refused = "call:shop_of_check:nobody"', "on_refused: got 'call:shop_of_check:nobody', expected call:"),
    ],
)
def test_check_finds_mistakes_that_otherwise_fail_at_startup(settings: str, mistake: str, check: Check) -> None:
    lines = check(f'limits = "5/minute"\n{settings}', code=1).splitlines()
    assert len(lines) == 2
    assert lines[0].partition(" ")[2].startswith(mistake)
    assert lines[0].partition(" ")[0] == f"limits.toml:{3 if mistake.startswith('key') else 2}:"


@pytest.mark.parametrize("call", ["wsgi_app", "plain"])
def test_on_refused_accepts_wsgi_apps_and_plain_functions(call: str, check: Check) -> None:
    assert "no mistakes" in check(f'limits = "5/minute"\non_refused = "call:shop_of_check:{call}"')


def test_wsgi_option_rejects_async_callables(check: Check) -> None:
    settings = 'tier = "call:shop_of_check:plan"\nlimits = {free = "5/minute"}'
    assert "no mistakes" in check(settings)
    first = check(settings, "--wsgi", code=1).splitlines()[0]
    assert first == "limits.toml:1: tier: got plan, which is async; expected a plain function under WSGI"


def test_wsgi_option_warns_about_websocket_messages(check: Check) -> None:
    text = (
        "messages: a limiter under WSGI does not see messages of websockets, so they are not limited; limit them in "
        "the app, and remove this option"
    )
    settings = 'limits = "5/minute"\nmessages = "1/second"\n'
    assert check(settings) == "limits.toml: no mistakes; 0 rules, no warnings\n"
    assert check(settings, "--wsgi") == f"limits.toml: no mistakes; 0 rules, 1 warning\n  {text}\n"
    assert check(f"{settings}strict = true", "--wsgi", code=1).splitlines()[0] == f"limits.toml:2: {text}"


def test_environment_variables_override_the_file(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_STORE", "reddis://")
    assert "RATELIMIT_MW_STORE: store: got the scheme 'reddis'" in check(
        'limits = "5/minute"\nstore = "memory://"', code=1
    )
    monkeypatch.setenv("RATELIMIT_MW_STORE", "memory://")
    printed = check('limits = "5/minute"\nstore = "reddis://"')
    assert printed == "limits.toml: no mistakes; 0 rules, no warnings\n  from the environment: RATELIMIT_MW_STORE\n"
    monkeypatch.setenv("RATELIMIT_MW_STOR", "memory://")
    assert "RATELIMIT_MW_STOR: unknown setting `stor`: did you mean `store`?" in check('limits = "5/minute"', code=1)


@pytest.mark.parametrize("arguments", [["schema"], ["check", "limits.toml"]])
def test_commands_exit_silently_if_their_output_pipe_is_closed(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text('limits = "5/minute"', "utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "ratelimit_mw", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path(ratelimit_mw.__file__).parent.parent)},
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("word", "end"),
    [("chek", ", did you mean 'check'?\n"), ("xyz", ")\n"), ("service", ", did you mean 'serve'?\n")],
)
def test_unknown_command_is_rejected_with_the_closest_match_if_any(word: str, end: str) -> None:
    done = command(word, folder=BROKEN)
    assert done.returncode == 2
    assert f"invalid choice: '{word}' (choose from " in done.stderr
    assert done.stderr.endswith(end)
