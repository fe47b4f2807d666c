"""Scenarios: which limits apply to CORS preflights."""

from collections.abc import Mapping
from typing import Any

from web.scenario import Scenario, State, Step, blocked, no
from web.scenarios_clients import TIERS, left

PREFLIGHT = {"Origin": "https://example.com", "Access-Control-Request-Method": "PUT"}


def preflight(*, origin: bool = True, method: bool = True) -> Mapping[str, str]:
    kept = {"Origin": origin, "Access-Control-Request-Method": method}
    return {name: value for name, value in PREFLIGHT.items() if kept[name]}


def asks(path: str = "/", **more: Any) -> Step:
    """Return the preflight that a browser sends before a request to another origin."""
    return Step(method="OPTIONS", path=path, headers=PREFLIGHT, **more)


def announces(method: str, path: str = "/", **more: Any) -> Step:
    """Return a preflight that announces this method. A client may write any method."""
    return Step(method="OPTIONS", path=path, headers={**PREFLIGHT, "Access-Control-Request-Method": method}, **more)


def refuses(method: str, name: str, path: str, *others: State) -> Step:
    """Return a preflight that announces this method and is refused by the rule `name`."""
    asked = announces(method, path)
    return no(3600, name, method="OPTIONS", path=path, headers=asked.headers, state=(*left(0, name), *others))


PREFLIGHTS = (
    Scenario(
        name="preflights have the default limits in a bucket of their own",
        settings={"limits": "3/hour", "rules": [{"path": "/a", "limits": "9/hour"}]},
        steps=(
            asks(state=left(2, "preflight"), policy=(("preflight", 3, 3600),)),
            asks("/a", state=left(8, "a")),
            Step(state=left(2)),
            asks("//a", state=(("preflight", 1, 3600), ("a", 7, 3600))),
            asks(state=left(0, "preflight")),
            no(3600, "preflight", method="OPTIONS", headers=PREFLIGHT, state=left(0, "preflight")),
            Step(method="PUT", headers=preflight(method=False), state=left(1)),
            Step(method="PUT", path="/a", state=left(8, "a")),
        ),
    ),
    Scenario(
        name="what is no preflight is an ordinary request",
        settings={
            "limits": "9/hour",
            "rules": [{"path": "/a", "methods": ["OPTIONS"], "limits": "5/hour", "name": "a"}],
        },
        steps=(
            Step(method="OPTIONS", state=left(8)),
            Step(method="OPTIONS", headers=preflight(method=False), state=left(7)),
            Step(method="OPTIONS", headers=preflight(origin=False), state=left(6)),
            Step(method="GET", headers=PREFLIGHT, state=left(5)),
            Step(method="OPTIONS", path="/a", state=left(4, "a")),
            asks("/a", state=(("a", 4, 3600), ("preflight", 8, 3600))),
        ),
    ),
    Scenario(
        name="a rule for all methods is met by preflights, in a bucket of its own, whatever they announce",
        settings={"limits": [], "rules": [{"path": "/a", "limits": "4/hour"}]},
        promises=(9,),
        steps=(
            announces("PUT", "/a", state=left(3, "a")),
            announces("XYZ", "/a", state=left(2, "a")),
            announces("", "/a", state=left(1, "a")),
            announces("get, post\t", "/a", state=left(0, "a")),
            refuses("PUT", "a", "/a"),
            refuses("XYZ", "a", "/a"),
            refuses("", "a", "/a"),
            *(Step(method="PUT", path="/a", state=left(3 - number, "a")) for number in range(4)),
            no(3600, "a", method="PUT", path="/a", state=left(0, "a")),
            announces("PUT", asked=0, source=""),
        ),
    ),
    Scenario(
        name="a rule for some methods is met by a preflight that announces one, and so is what OPTIONS meets",
        settings={
            "limits": "9/hour",
            "rules": [
                {"path": "/a", "methods": ["POST"], "limits": "2/hour", "name": "post"},
                {"path": "/a", "methods": ["GET"], "limits": "99/hour", "name": "get"},
                {"path": "/a", "methods": ["PUT"], "exempt": True, "name": "put"},
            ],
        },
        promises=(9,),
        steps=(
            announces("POST", "/a", state=(("post", 1, 3600), ("preflight", 8, 3600))),
            announces(" post", "/a", state=(("post", 0, 3600), ("preflight", 7, 3600))),
            refuses("POST", "post", "/a", ("preflight", 7, 3600)),
            announces("HEAD", "/a", state=(("preflight", 6, 3600), ("get", 98, 3600))),
            announces("XYZ", "/a", state=left(5, "preflight")),
            announces("PUT", "/a", state=left(4, "preflight")),
            Step(method="POST", path="/a", state=left(1, "post")),
            Step(method="OPTIONS", path="/a", state=left(8)),
        ),
    ),
    Scenario(
        name="preflights meet rules by host, rules with `when` and rules that are not final",
        settings={
            "limits": [],
            "rules": [
                {"path": "/a", "host": "a.test", "limits": "9/hour", "name": "host"},
                {"path": "/a", "when": lambda asked: asked.header("x-no") is None, "limits": "8/hour", "name": "when"},
                {"path": "/{rest:path}", "limits": "7/hour", "name": "all", "final": False},
            ],
        },
        promises=(9,),
        steps=(
            announces("PUT", "/a", lines=(("Host", "a.test"),), state=left(8, "host")),
            announces("PUT", "/a", lines=(("Host", "b.test"),), state=left(7, "when")),
            announces("PUT", "/a", lines=(("Host", "b.test"), ("X-No", "1")), state=left(6, "all")),
        ),
    ),
    Scenario(
        name="preflights that are refused too often are banned, and nobody else is",
        settings={
            "limits": [],
            "rules": [{"path": "/a", "limits": "1/hour", "penalty": "2 refusals per minute: 2 hours", "name": "a"}],
        },
        promises=(9,),
        steps=(
            announces("PUT", "/a", state=left(0, "a")),
            refuses("PUT", "a", "/a"),
            no(
                7200,
                "a",
                "a-penalty",
                method="OPTIONS",
                path="/a",
                headers=PREFLIGHT,
                state=(("a-penalty", 0, 7200), ("a", 0, 3600)),
            ),
            Step(method="PUT", path="/a", state=left(0, "a")),
        ),
    ),
    Scenario(
        name="without rules too",
        settings={"limits": "2/hour"},
        steps=(
            Step(method="OPTIONS", state=left(1)),
            asks(state=left(1, "preflight")),
            Step(state=left(0)),
            asks(state=left(0, "preflight")),
        ),
    ),
    Scenario(
        name="a rule for preflights is for nothing else",
        settings={
            "limits": "9/hour",
            "rules": [
                {"path": "/a", "preflight": True, "limits": "5/hour", "name": "cors"},
                {"path": "/b", "preflight": True, "exempt": True, "name": "open"},
                {"path": "/c", "preflight": True, "limits": "7/hour", "name": "more", "final": False},
            ],
        },
        promises=(9,),
        steps=(
            asks("/a", state=left(4, "cors")),
            Step(path="/a", state=left(8)),
            Step(path="/a", method="OPTIONS", state=left(7)),
            asks("//a", state=(("cors", 3, 3600), ("preflight", 8, 3600))),
            asks("/b", asked=0, source=""),
            Step(path="/b", state=left(6)),
            asks("/c", state=(("preflight", 7, 3600), ("more", 6, 3600))),
            asks("/d", state=left(6, "preflight")),
        ),
    ),
    Scenario(
        name="preflights are counted for the app, blocked, safe and exempt like all others",
        settings={
            "limits": "9/hour",
            "app_limits": "5/hour",
            "exempt": ["/health"],
            "blocklist": ["10.0.0.1"],
            "safelist": ["10.0.0.2"],
        },
        steps=(
            asks(state=(("app", 4, 3600), ("preflight", 8, 3600))),
            Step(state=(("app", 3, 3600), ("default", 8, 3600))),
            asks("/health", asked=0, source=""),
            asks("//health", state=(("app", 2, 3600), ("preflight", 7, 3600))),
            blocked(method="OPTIONS", headers=PREFLIGHT, client="10.0.0.1"),
            asks(client="10.0.0.2", asked=0, source=""),
        ),
    ),
    Scenario(
        name="preflights by tier",
        settings={"limits": TIERS, "tier": "header:x-tier"},
        steps=(
            asks(state=left(8, "preflight")),
            Step(method="OPTIONS", headers={**PREFLIGHT, "X-Tier": "pro"}, state=left(98, "preflight")),
        ),
    ),
)
