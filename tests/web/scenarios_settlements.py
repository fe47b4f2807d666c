"""Scenarios: settlement after the response, by its status, by a callable, or by the app itself."""

from typing import Any

from web.scenario import Scenario, Step, no

FAILED: dict[str, Any] = {"name": "in", "path": "/status/{code}", "limits": "2/minute", "count_status": [401, "5xx"]}


def cost_of(request: Any, response: Any) -> Any:
    """Return the cost in the path, such as 7 in `/cost/7`. Asserts that the response is passed."""
    assert (response.status, response.ending) == (200, "ended")
    assert response.headers["x-source"] == "store"
    said = request.path.rpartition("/")[2]
    return int(said) if said.isdecimal() else float(said) if "." in said else said


def tokens_of(request: Any, response: Any) -> dict[str, int]:
    """Return the same true cost for each request, which counts where the app passed none."""
    assert (request.path[:8], response.ending) == ("/settle/", "ended")
    return {"in": 1, "out": 50}


TOKENS: dict[str, Any] = {
    "name": "llm",
    "path": "/cost/{tokens}",
    "limits": ["100/hour using fixed_window", {"limit": "9/minute", "name": "requests", "cost": 1, "settle": False}],
    "cost": 10,
    "settle": cost_of,
}

AFTER = (
    Scenario(
        name="only answers with a status that counts are charged",
        settings={"limits": "9/hour", "rules": [FAILED]},
        promises=(1,),
        steps=(
            Step(path="/status/200", state=(("in", 1, 60),), settled=1),
            Step(path="/status/204", status=204, state=(("in", 1, 60),), settled=1),
            Step(path="/status/401", status=401, state=(("in", 1, 60),)),
            Step(path="/status/200", state=(("in", 0, 60),), settled=1),
            Step(path="/status/500", status=500, state=(("in", 0, 60),)),
            no(60, "in", path="/status/200", state=(("in", 0, 60),)),
            Step(path="/elsewhere", state=(("default", 8, 3600),)),
        ),
    ),
    Scenario(
        name="what raises is answered 500, and counts as that",
        settings={"limits": [], "rules": [{"path": "/error", "limits": "3/minute", "count_status": ["5xx"]}]},
        steps=(
            Step(path="/error", fails=True, status=500, state=(("error", 2, 60),)),
            Step(path="/error", fails=True, status=500, state=(("error", 1, 60),)),
        ),
    ),
    Scenario(
        name="the status of all rules is the top's, unless a rule says another",
        settings={
            "limits": "2/minute",
            "count_status": ["401"],
            "rules": [{"path": "/status/204", "limits": "2/minute", "name": "own", "count_status": []}],
        },
        steps=(
            Step(path="/status/200", state=(("default", 1, 60),), settled=1),
            Step(path="/status/401", status=401, state=(("default", 1, 60),)),
            Step(path="/status/204", status=204, state=(("own", 1, 60),)),
            Step(path="/status/204", status=204, state=(("own", 0, 60),)),
            Step(path="/status/404", status=404, state=(("default", 0, 60),), settled=1),
            Step(path="/status/401", status=401, state=(("default", 0, 60),)),
            no(60, "default", state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="a callable says the true cost, more or less",
        settings={"limits": "9/hour", "rules": [TOKENS]},
        steps=(
            Step(path="/cost/3.5", state=(("requests", 8, 60), ("llm", 90, 3600)), settled=1),
            Step(path="/cost/10", state=(("requests", 7, 60), ("llm", 86, 3600))),
            Step(path="/cost/80", state=(("requests", 6, 60), ("llm", 76, 3600)), settled=1),
            no(3600, "llm", path="/cost/7", state=(("llm", 6, 3600), ("requests", 6, 60))),
        ),
    ),
    Scenario(
        name="what is no cost leaves the estimate charged",
        settings={"limits": [], "rules": [{**TOKENS, "limits": "100/hour"}]},
        steps=(
            Step(path="/cost/nonsense", state=(("llm", 90, 3600),)),
            Step(path="/cost/-5", state=(("llm", 80, 3600),)),
            Step(path="/cost/0", state=(("llm", 70, 3600),), settled=1),
            Step(path="/cost/5", state=(("llm", 70, 3600),), settled=1),
        ),
    ),
    Scenario(
        name="the app says it itself, and its last word counts",
        settings={
            "limits": "9/hour",
            "app_limits": {"limit": "9/minute", "settle": False},
            "rules": [
                {
                    "path": "/settle/{rest:path}",
                    "limits": "100/hour using fixed_window",
                    "name": "own",
                    "cost": 10,
                    "settle": cost_of,
                }
            ],
        },
        steps=(
            Step(path="/settle/9/7", state=(("app", 8, 60), ("own", 90, 3600)), settled=1),
            Step(path="/settle/7/10", state=(("app", 7, 60), ("own", 83, 3600))),
            Step(path="/settle/73/50", state=(("app", 6, 60), ("own", 73, 3600)), settled=1),
            Step(path="/settle/50", state=(("own", 23, 3600), ("app", 5, 60)), settled=1),
            no(3600, "own", path="/settle/1", state=(("own", 0, 3600), ("app", 5, 60))),
        ),
    ),
    Scenario(
        name="each limit is settled by its name, and one without a name keeps its estimate",
        settings={
            "limits": "9/hour",
            "rules": [
                {
                    "name": "llm",
                    "path": "/settle/{rest:path}",
                    "limits": [
                        {"limit": "1000/hour using fixed_window", "name": "in", "cost": 100},
                        {"limit": "500/hour using fixed_window", "name": "out", "cost": 50},
                        {"limit": "9/minute", "name": "calls", "cost": 1, "settle": False},
                    ],
                    "settle": tokens_of,
                }
            ],
        },
        steps=(
            Step(
                path="/settle/in=30,out=400", state=(("calls", 8, 60), ("in", 900, 3600), ("out", 450, 3600)), settled=1
            ),
            Step(path="/settle/in=70", state=(("out", 50, 3600), ("in", 870, 3600), ("calls", 7, 60)), settled=1),
            Step(path="/settle/in=3/out=9", state=(("out", 0, 3600), ("in", 800, 3600), ("calls", 6, 60)), settled=1),
            no(3600, "out", path="/settle/5", state=(("out", 41, 3600), ("in", 897, 3600), ("calls", 6, 60))),
        ),
    ),
    Scenario(
        name="a status that does not count goes before what the app says",
        settings={"limits": "3/minute", "count_status": [401]},
        steps=(
            Step(path="/settle/3", state=(("default", 2, 60),), settled=1),
            Step(path="/status/401", status=401, state=(("default", 2, 60),)),
        ),
    ),
    Scenario(
        name="while the store fails, what is settled is settled here",
        settings={"limits": "3/minute", "count_status": [401]},
        steps=(
            Step(broken=True, state=(("default", 2, 60),), source="local"),
            Step(broken=True, path="/status/401", status=401, state=(("default", 2, 60),)),
            Step(broken=True, state=(("default", 1, 60),), source="local"),
            Step(state=(("default", 2, 60),), settled=1),
        ),
    ),
)
