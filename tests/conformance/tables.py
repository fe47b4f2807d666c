"""Loads the decision tables of other systems: how many rows each has, and which rows cannot be replayed.

A row is one result of the other system. `test_counts.py` fails if a row of a table is not accounted for here.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
_PROSE = {"id", "sources", "semantics", "units", "notation"}


class Left(NamedTuple):
    """A case that is not replayed: the reason, the result of the other system, and the result of this package."""

    why: str
    theirs: str
    ours: str


class Table(NamedTuple):
    """The table of one system."""

    system: str
    data: dict[str, Any]
    rows: dict[str, int]  # by name of the case
    left: dict[str, Left]  # the cases that are not replayed

    @property
    def cases(self) -> list[str]:
        """The names of the cases that are replayed."""
        return [case for case in self.rows if case not in self.left]

    @property
    def replayed(self) -> int:
        """The number of rows that are replayed."""
        return sum(self.rows[case] for case in self.cases)

    @property
    def left_out(self) -> int:
        """The number of rows that are not replayed."""
        return sum(self.rows[case] for case in self.left)


def _read(stem: str, sections: set[str]) -> dict[str, Any]:
    """Read a table. Raises ValueError if it has an unknown section, which would not be replayed."""
    data: dict[str, Any] = json.loads((_HERE / f"{stem}.json").read_text("utf-8"))
    if unknown := set(data) - sections - _PROSE:
        raise ValueError(f"{stem}.json: {unknown} is new")
    return data


def _redis_cell() -> Table:
    sections = {"cases", "rate_helpers_ms", "errors", "cl_throttle_replies", "http", "memstore", "cas_failure"}
    data = _read("01_gcra_throttled_rediscell", sections)
    replies = data["cl_throttle_replies"]
    rows = {case["name"]: len(case["rows"]) for case in data["cases"]}
    rows["rate_helpers_ms"] = len(data["rate_helpers_ms"].keys() - {"comment"})
    rows["errors"] = len(data["errors"])
    rows["cl_throttle_replies"] = len(replies["rows"])
    rows["docs_only_rows"] = sum(len(row.keys() & {"fresh", "next"}) for row in replies["docs_only_rows"])
    rows |= {"http": 1, "memstore": len(data["memstore"]), "cas_failure": 1}
    return Table(
        "redis-cell, throttled",
        data,
        rows,
        {"cas_failure": Left("a decision is one step", "an error", "no such error")},
    )


def _steps(case: dict[str, Any]) -> int:
    """Return how many results a limiter returns in Guava's steps: one for `acq` and `try`, several for `acq_seq`."""
    answers = {"acq": 1, "try": 1, "sleep_ms": 0, "adv_us": 0, "set_rate": 0}
    return sum(len(step[1]) if step[0] == "acq_seq" else answers[step[0]] for step in case["steps"])


def _guava() -> Table:
    data = _read("10_token_bucket_guava", {"cases", "properties", "errors"})
    rows = {case["name"]: _steps(case) for case in data["cases"]}
    rows |= {case["name"]: 1 for case in data["properties"]}
    rows |= {f"error {call}": 1 for call in data["errors"]}
    infinite = "a quota is finite"
    left = {
        "DoubleMinValueCanAcquireExactlyOnce": Left(
            "a window is at most a hundred years", "1 of 3 passes, and no later one", "a `ConfigError`"
        ),
        "Infinity_Bursty": Left(infinite, "2147483647 permits in 0 s", "a `ConfigError`"),
        "Infinity_BurstyTimeElapsed": Left(infinite, "full at the next rate: 3 permits in 0 s", "a `ConfigError`"),
        "Infinity_WarmUp": Left(infinite, "2147483647 permits in 0 s", "a `ConfigError`"),
        "Infinity_WarmUpTimeElapsed": Left(infinite, "warm at the next rate: a permit each 1.0 s", "a `ConfigError`"),
    }
    return Table("Guava RateLimiter", data, rows, left)


def _nginx() -> Table:
    data = _read("11_leaky_nginx_limit_req", {"arith_cases", "multi_zone", "limit_conn"})
    rows = {case["name"]: len(case["rows"]) for case in data["arith_cases"] if "name" in case}
    rows["multi_zone"] = len(data["multi_zone"]["rows"])
    rows["multi_zone, nodelay"] = len(data["multi_zone"]["repeat_with_nodelay"])
    rows["limit_conn"] = len(data["limit_conn"]["rows"])
    return Table("nginx", data, rows, {})


def _sentinel() -> Table:
    sections = {
        "warm_up",
        "throttling",
        "param_default_checker",
        "request_limiter",
        "cluster_metric",
        "concurrent_token",
    }
    data = _read("18_sentinel", sections)
    checker = data["param_default_checker"]
    rows = {
        "throttling": len(data["throttling"]["cases"]),
        "param_default_checker": sum(len(case["rows"]) for case in checker["cases"]),
        "overflow": checker["overflow"]["rows"].count("2 passes"),
        "threads": 1,
        "request_limiter": len(data["request_limiter"]["steps"]),
        "warm_up": len(data["warm_up"]["steps"]),
        "cluster_metric": 1,
        "concurrent_token": 1,
    }
    left = {
        "warm_up": Left(
            "`smooth` has the same curve, but all past units decide, not those of the last second",
            "cold, of 10/s: the 2nd of a second passes, the 9th not; warm: the 9th passes, the 11th not",
            "cold: 4 pass in a second; warm: 10",
        ),
        "cluster_metric": Left("not a decision", "waits of 200, 200 and 0 ms", "no such counter"),
    }
    return Table("Sentinel", data, rows, left)


REDIS_CELL, GUAVA, NGINX, SENTINEL = _redis_cell(), _guava(), _nginx(), _sentinel()
TABLES = (REDIS_CELL, GUAVA, NGINX, SENTINEL)
