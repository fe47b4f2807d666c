"""Tests that the benchmark program counts and reports correctly. No test depends on speed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_program import SMALL, put_wrk, row, run, run_here, written
from ratelimit_mw.algorithms import ALGORITHMS
from redis_servers import RedisServer

LIAR = """
import sys
from benchmarks import __main__ as program
from benchmarks.runner import Batch, Race

program.ROWS[:] = [Race(name="liar", what="", ours=lambda lab: lambda calls: Batch(1, calls - 1, 1))]
sys.exit(program.main(["--only", "liar", "--rounds", "1", "--calls", "5"]))
"""
COUNTS = """
import sys
from benchmarks import __main__ as program
from benchmarks.runner import Count, Counted

def heavy(lab, calls):
    return Counted(2 * calls, calls, 0, notes=("all of them",))

program.ROWS[:] = [
    Count(name="heavy", what="", count=heavy, unit="bytes", target=1.0),
    Count(name="inexact", what="", count=heavy, target=1.0, exact=True),
    Count(name="saved", what="", count=heavy, target=2.0, at_least=True),
    Count(name="all", what="", count=heavy, target=10.0, total=True),
    Count(name="admitted", what="", count=heavy, admits=False),
]
sys.exit(program.main(["--only", sys.argv[1], "--calls", "5"]))
"""
FOUR_TIMES_AS_FAST = """
from benchmarks import __main__ as program
from benchmarks.lab import Missing
from benchmarks.runner import Batch, Race

def turn(microseconds):
    return lambda lab: lambda calls: Batch(calls * microseconds * 1000, calls, 0)

def nobody(lab):
    raise Missing("nobody: not here")

given = {"what": "", "ours": turn(1), "peer": turn(4), "at_least": True}
program.ROWS[:] = [
    Race(name="enough", target=4.0, **given),
    Race(name="wanting", target=4.1, **given),
    Race(name="absent", target=4.1, **{**given, "ours": nobody}),
]
program.main(["--only", "enough", "wanting", "absent", "--rounds", "3", "--calls", "5", "--json", "it.json"])
"""
LEAKS = """
import sys
from benchmarks import __main__ as program
from benchmarks.rows.routers import Admits

def nothing(app):
    return "no limit at all"

program.ROWS[:] = [
    Admits(name=f"leaks-{whose}", what="", path="/included/items", protect=nothing, ours=whose == "ours")
    for whose in ("ours", "peer")
]
sys.exit(program.main(["--only", f"leaks-{sys.argv[1]}"]))
"""
WITHOUT_OURS = """
import sys
sys.modules["ratelimit_mw.fastapi"] = None
from benchmarks.__main__ import main

sys.exit(main(["--only", "fastapi", "--json", "it.json"]))
"""
HELD = """
import sys
from benchmarks.web import IETF, PLENTY, Answer, held

case = sys.argv[1]
fields = set() if case == "mute" else IETF

def make(quota):
    statuses = [200] * quota if quota < 10 else [200] * 10
    return statuses + [200 if case == "lax" else 429], quota

app = held(make, lambda app: Answer(app[0].pop(0), fields))
assert app[1] == PLENTY
"""
WITHOUT_SLOWAPI = """
import sys
sys.modules["slowapi"] = None
from benchmarks.__main__ import main

sys.exit(main(["--only", "routers", "--json", "it.json"]))
"""
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from benchmarks.__main__ import main

sys.exit(main(["--only", "served-memory", "--rounds", "1", "--json", "it.json"]))
"""
LUA = {"sliding_window_counter": 1.6, "sliding_window_log": 2.4, "sliding_window_log-by-log": 2.0, "smooth": 2.1}
UPDATED = """
import json, sys
from benchmarks.results import updated

print(json.dumps(updated(*map(json.loads, sys.argv[1:]))))
"""
TWO_ROWS = """
import asyncio, sys
from benchmarks.lab import Lab

opened = []
with Lab(1, 1, sys.stderr) as lab:
    for name in ("first", "second"):
        lab.begin(name)
        print("begins with", opened)
        opened.append(name)
        lab.closing.callback(opened.remove, name)
    print(lab.wait(asyncio.sleep(0, "the loop runs")))
print("ends with", opened)
"""
WITHOUT_LIMITS = """
import sys
sys.modules["limits"] = None
from benchmarks.__main__ import main

sys.exit(main(["--only", "memory-token", "--rounds", "2", "--calls", "20"]))
"""


def test_rows_without_a_server_have_the_expected_counts(tmp_path: Path) -> None:
    memory = [f"memory-{name}" for name in ("token", "default", "refused", "tail", "churn")]  # no 100,000 keys
    done = run(tmp_path, "-m", "benchmarks", "--only", *memory, "bytes", "asgi", "wsgi", *SMALL, "--json", "it.json")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("memory-token", "memory-default", "asgi", "asgi-slowapi", "wsgi"):
        assert row(done.stdout, name)[-2:] == ["40", "0"]
    for name in ("memory-refused", "memory-refused-default", "asgi-refused", "wsgi-refused"):
        assert row(done.stdout, name)[-2:] == ["0", "40"]
    assert "memory-token" in done.stderr  # progress is printed to stderr
    rows = written(tmp_path / "it.json")
    counts = {name: (one["admitted"], one["refused"], one["problems"]) for name, one in rows.items()}
    assert counts["memory-token"] == (40, 0, [])
    assert counts["memory-refused"] == (0, 40, [])
    held = [name for name in rows if name.startswith(("bytes-", "memory-tail-"))]
    assert {"bytes-gcra", "bytes-token_bucket", "memory-tail-gcra", "memory-tail-gcra-worst"} <= {*held}
    for name in held:
        assert counts[name] == (20, 0, [])
        assert rows[name]["notes"][0] == "20 keys held"
    assert "times preempted" in rows["memory-tail-gcra"]["notes"][1]
    assert counts["memory-churn"] == (20, 0, [])
    assert (rows["memory-churn"]["notes"][0], rows["memory-churn"]["target"]) == ("2 keys held", 5000)
    slowest = {name: rows[f"memory-churn{name}"]["value"] for name in ("", "-late", "-busy", "-idle")}
    assert 0 < slowest["-late"] <= slowest[""]
    assert min(slowest.values()) > 0


def test_rows_of_rules_admit_all_requests(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-m", "benchmarks", "--only", "rules", *SMALL, "--json", "it.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = written(tmp_path / "it.json")["rules-500"]
    assert (found["admitted"], found["refused"], found["problems"]) == (40, 0, [])
    assert (found["unit"], found["target"], len(found["values"])) == ("x", 3.0, 2)


def test_rows_of_routers_count_the_admissions_on_each_route(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", WITHOUT_SLOWAPI)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    for name in ("routers-direct", "routers-included"):
        assert (rows[name]["values"], rows[name]["target"]) == ([2], 2)
        assert (rows[name]["admitted"], rows[name]["refused"], rows[name]["problems"]) == (2, 8, [])
        for peer in (f"{name}-slowapi", f"{name}-slowapi-asgi"):
            assert (rows[peer]["values"], rows[peer]["notes"]) == ([], ["skipped, slowapi: not installed"])


def test_row_without_a_part_of_the_package_is_skipped_with_a_note(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", WITHOUT_OURS)
    assert done.returncode == 0, done.stdout + done.stderr
    found = written(tmp_path / "it.json")["fastapi"]
    assert (found["values"], found["target"]) == ([], 0.62)
    assert found["notes"] == ["skipped, ratelimit_mw.fastapi.RateLimit: not there"]


@pytest.mark.parametrize(("app", "told"), [("right", ""), ("lax", "[200, 200, 200]"), ("mute", "ratelimit-policy")])
def test_app_is_timed_only_if_it_limits_and_sends_header_fields(tmp_path: Path, app: str, told: str) -> None:
    done = run_here(tmp_path, "-c", HELD, app)
    assert (done.returncode == 0) is (app == "right"), done.stderr
    assert told in done.stderr


def test_route_without_a_limit_fails_only_for_this_package(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", LEAKS, "peer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10.00 admitted" in done.stdout
    assert "2.00 missed" in done.stdout
    assert "no limit at all, fastapi " in done.stdout
    done = run_here(tmp_path, "-c", LEAKS, "ours")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG: 10 admitted, not 2" in done.stdout


def test_bytes_row_counts_the_keys_of_the_memory_store(tmp_path: Path) -> None:
    only = ("--only", "bytes-gcra", "--calls", "20000")
    done = run(tmp_path, "-m", "benchmarks", *only, "--json", "it.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20,000 keys held" in done.stdout
    found = written(tmp_path / "it.json")["bytes-gcra"]
    assert (found["unit"], found["target"]) == ("bytes", 190)
    assert len("{0123456789abcdef0123456789abcdef}:default") < found["value"] < 1000


@pytest.mark.one_redis
def test_rows_of_the_redis_server_have_the_expected_counts(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "redis-server").symlink_to(redis_server.binary)  # the rows start their own server, from PATH
    only = ("--only", "lua", "redis-bytes")
    done = run(tmp_path, "-m", "benchmarks", *only, *SMALL, "--json", "it.json", PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    times = [f"lua-{name}" for name in (*ALGORITHMS, "sliding_window_log-by-log", "minimal_log")]
    targets = {**dict.fromkeys(times[: len(ALGORITHMS)], 1.5), **{f"lua-{name}": most for name, most in LUA.items()}}
    assert list(rows) == [*times, *[f"redis-bytes-{name}" for name in ALGORITHMS]]
    for name in times:
        lua = rows[name]
        assert (lua["unit"], lua["admitted"], lua["refused"], lua["problems"]) == ("x", 40, 0, [])
        assert lua["target"] == targets.get(name)
        assert min(lua["ours"], lua["peer"]) > 0
    for name in ALGORITHMS:
        size = rows[f"redis-bytes-{name}"]
        assert (size["unit"], size["admitted"], size["refused"], size["problems"]) == ("bytes", 20, 0, [])
        assert size["target"] == (200 if name in {"gcra", "token_bucket"} else None)
        assert len(f"rl:1:{{0123456789abcdef0123456789abcdef}}:default:100/60s_using_{name}") < size["value"] < 1000


@pytest.mark.one_redis
def test_rows_of_many_keys_in_redis_have_the_expected_counts(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "redis-server").symlink_to(redis_server.binary)
    only = ("--only", "redis-sync-refused", "redis-sync-keys", "redis-node", "redis-app")
    done = run(tmp_path, "-m", "benchmarks", *only, *SMALL, "--json", "it.json", PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    counts = {name: (one["admitted"], one["refused"], one["problems"]) for name, one in rows.items()}
    nodes = [f"redis-{name}-{limits}" for name in ("node-sync", "node-async", "app-async") for limits in (1, 3)]
    wanted = {"redis-sync-refused": (0, 40), "redis-sync-keys": (40, 0), "redis-sync-keys-refused": (0, 40)}
    wanted |= dict.fromkeys(nodes, (20, 0))
    assert counts == {name: (*right, []) for name, right in wanted.items()}
    assert {rows[name]["unit"] for name in nodes} == {"us"}


@pytest.mark.one_redis
def test_rows_of_production_have_the_expected_counts(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "redis-server").symlink_to(redis_server.binary)
    names = [
        "production-asgi-redis-1000-proxy-10",
        "production-wsgi-memory-1000-proxy-10",
        "production-wsgi-redis-1-direct-0",
    ]
    done = run(tmp_path, "-m", "benchmarks", "--only", *names, *SMALL, "--json", "it.json", PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    counts = {name: (one["admitted"], one["refused"], one["unit"], one["problems"]) for name, one in rows.items()}
    assert counts == dict.fromkeys(names, (40, 0, "us", []))


def test_served_rows_count_the_responses_to_wrk(tmp_path: Path) -> None:
    put_wrk(tmp_path)
    only = ("--only", "served-memory", "--rounds", "1", "--json", "it.json")
    done = run(tmp_path, "-m", "benchmarks", *only, PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    peers = ("over-asgi-ratelimit", "asgi-ratelimit", "over-slowapi", "slowapi")
    assert [*rows] == ["served-memory", *[f"served-memory-{name}" for name in peers]]
    targets = [(one["target"], one["at_least"]) for one in rows.values()]
    assert targets == [(0.84, True), (1.0, True), (None, True), (None, True), (None, True)]
    found = rows["served-memory"]
    assert (found["refused"], found["problems"], len(found["values"])) == (0, [], 1)
    assert found["admitted"] > 100
    assert found["values"][0] == pytest.approx(found["peer"] / found["ours"])


@pytest.mark.parametrize(
    ("without", "told"),
    [
        ("wrk", "wrk: not on PATH (apt-get install wrk, or brew install wrk)"),
        ("uvicorn", "uvicorn: not installed"),
    ],
)
def test_served_row_without_a_program_is_skipped_with_a_note(tmp_path: Path, without: str, told: str) -> None:
    done = run(tmp_path, "-c", WITHOUT, without, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "it.json")["served-memory"]
    assert (found["values"], found["target"], found["at_least"]) == ([], 0.84, True)
    assert found["notes"] == [f"skipped, {told}"]


def test_heading_names_versions_and_machine(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-m", "benchmarks", "--only", "memory-token", *SMALL)
    for word in (
        "python ",
        "ratelimit-mw ",
        "limits ",
        "asgi-ratelimit ",
        "slowapi ",
        "fastapi ",
        "redis-py ",
        "redis-server ",
        " cores",
    ):
        assert word in done.stdout


def test_wrong_counts_fail(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", LIAR)
    assert done.returncode == 1, done.stderr
    assert "WRONG: ours: 4 admitted and 1 refused, not 5 and 0" in done.stdout


def test_count_over_its_target_fails_only_if_exact(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", COUNTS, "heavy")
    assert done.returncode == 0, done.stderr
    assert "2.00 bytes" in done.stdout
    assert "1.00 missed" in done.stdout
    assert "all of them" in done.stdout
    done = run_here(tmp_path, "-c", COUNTS, "inexact")
    assert done.returncode == 1, done.stderr
    assert "WRONG: 2.0 per call, not 1.0" in done.stdout


@pytest.mark.parametrize(("name", "told"), [("saved", "2.00 calls >= 2.00 met"), ("all", "10.00 calls <= 10.00 met")])
def test_count_shows_the_direction_of_its_target(tmp_path: Path, name: str, told: str) -> None:
    done = run_here(tmp_path, "-c", COUNTS, name)
    assert done.returncode == 0, done.stderr
    assert told in " ".join(done.stdout.replace(" - ", " ").split())


def test_admissions_in_a_count_of_refusals_fail(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", COUNTS, "admitted")
    assert done.returncode == 1, done.stderr
    assert "WRONG: 5 admitted and 0 refused, not 0 and 5" in done.stdout


def test_race_with_a_minimum_compares_calls_per_second(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", FOUR_TIMES_AS_FAST)
    assert done.returncode == 0, done.stderr
    rows = written(tmp_path / "it.json")
    for name in ("enough", "wanting"):
        assert (rows[name]["values"], rows[name]["ours"], rows[name]["peer"]) == ([4.0] * 3, 1.0, 4.0)
    assert [one["verdict"] for one in rows.values()] == ["met", "missed", ""]
    assert [(one["target"], one["at_least"]) for one in rows.values()] == [(4.0, True), (4.1, True), (4.1, True)]
    assert row(done.stdout, "enough")[-5:] == [">=", "4.00", "met", "15", "0"]
    assert row(done.stdout, "wanting")[-5:] == [">=", "4.10", "missed", "15", "0"]
    assert rows["absent"]["notes"] == ["skipped, nobody: not here"]


def test_peer_that_is_not_installed_is_noted(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", WITHOUT_LIMITS)
    assert done.returncode == 0, done.stderr
    assert "limits: not installed" in done.stdout
    assert row(done.stdout, "memory-token")[-2:] == ["40", "0"]


def test_row_without_its_server_is_skipped_with_a_note(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-m", "benchmarks", "--only", "redis-sync-1", *SMALL, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "skipped, redis-server: not on PATH" in done.stdout


def test_unknown_row_is_an_error_that_names_the_rows(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-m", "benchmarks", "--only", "memory-tokn")
    assert done.returncode == 2
    assert "memory-token" in done.stderr


def test_update_replaces_the_measured_rows_in_a_file(tmp_path: Path) -> None:
    names, file = ("memory-token", "memory-refused"), tmp_path / "it.json"
    done = run_here(tmp_path, "-m", "benchmarks", "--only", *names, *SMALL, "--json", "it.json")
    assert done.returncode == 0, done.stderr
    before = written(file)
    more = ("--only", "memory-token", "--rounds", "3", "--calls", "20")
    done = run_here(tmp_path, "-m", "benchmarks", *more, "--update", "it.json")
    assert done.returncode == 0, done.stderr
    after = written(file)
    measured = [name for name in before if name.startswith("memory-token")]
    assert [*after] == [*before]
    assert {name: one["admitted"] for name, one in after.items() if name in measured} == dict.fromkeys(measured, 60)
    others = [name for name in before if name not in measured]
    assert others
    assert [after[name] for name in others] == [before[name] for name in others]
    assert json.loads(file.read_text())["rounds"] == "2 to 3"


def test_updated_results_keep_their_order(tmp_path: Path) -> None:
    def found(rounds: int | str, *rows: tuple[str, int]) -> dict[str, Any]:
        lines = [{"row": name[0], "what": name, "value": value} for name, value in rows]
        return {"rounds": rounds, "rows": lines}

    def updated(before: dict[str, Any], now: dict[str, Any]) -> Any:
        done = run_here(tmp_path, "-c", UPDATED, json.dumps(before), json.dumps(now))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    before = found("4 to 9", ("a", 1), ("b over c", 1), ("b over d", 1), ("c", 1))
    now = found(9, ("b over d", 2), ("b over e", 2), ("d", 2))
    after = found("4 to 9", ("a", 1), ("b over c", 1), ("b over d", 2), ("b over e", 2), ("d", 2), ("c", 1))
    assert updated(before, now) == after
    before = found("4 to 9", ("a", 1), ("b", 1), ("c", 1))
    assert updated(before, found(50, ("e", 2))) == found("4 to 50", ("a", 1), ("b", 1), ("c", 1), ("e", 2))
    assert updated(found(9, ("a", 1)), found(9, ("a", 2))) == found(9, ("a", 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "not a file that --json wrote: [Errno 2]"),
        ("[]", "not a file that --json wrote"),
        (
            '{"rounds": 1, "rows": [], "machine": {}, "versions": {"python": "2.7"}}',
            "measured with cpu None, cores None, system None, python 2.7, ",
        ),
    ],
)
def test_update_of_a_file_of_another_run_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "it.json").write_text(text)
    done = run_here(tmp_path, "-m", "benchmarks", "--only", "memory-token", *SMALL, "--update", "it.json")
    assert done.returncode == 2
    assert f"--update it.json: {message}" in " ".join(done.stderr.split())


def test_update_of_a_comparison_with_a_commit_is_an_error(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-m", "benchmarks", "--against", "HEAD", "--update", "it.json")
    assert done.returncode == 2
    assert "--update: it does not go with --against" in done.stderr


def test_row_closes_its_resources_before_the_next_row(tmp_path: Path) -> None:
    done = run_here(tmp_path, "-c", TWO_ROWS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["begins with []", "begins with []", "the loop runs", "ends with []"]


@pytest.mark.one_redis
def test_rows_of_workers_count_the_responses_to_wrk(tmp_path: Path, redis_server: RedisServer) -> None:
    put_wrk(tmp_path)
    (tmp_path / "redis-server").symlink_to(redis_server.binary)
    only = ("--only", "workers-flask", "--rounds", "1", "--json", "it.json")
    done = run(tmp_path, "-m", "benchmarks", *only, PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written(tmp_path / "it.json")
    targets = {name: (one["target"], one["refused"], one["problems"], one["notes"]) for name, one in rows.items()}
    assert targets == {
        "workers-flask-file": (0.75, 0, [], []),
        "workers-flask-redis": (0.75, 0, [], []),
        "workers-flask-update": (None, 0, [], []),
    }
    assert min(one["admitted"] for one in rows.values()) > 100


@pytest.mark.parametrize("options", [(), ("--memory",)])
def test_file_load_counts_its_takes(options: tuple[str, ...], tmp_path: Path) -> None:
    done = run(
        tmp_path, "-m", "benchmarks.file_load", "--processes", "2", "--rate", "200", "--seconds", "0.5", *options
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["takes"], figures["failed"]) == (200, 0)
    assert 0 < figures["50 %"] <= figures["99 %"] <= figures["99.9 %"] <= figures["longest"]
