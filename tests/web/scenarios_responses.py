"""Scenarios: status, headers and body of responses."""

from typing import Any

from web.scenario import Scenario, Step, no

TWO = {"limits": "2/minute"}
ALL = [{"limit": "2/minute", "key": "all"}, "9/hour"]


def streamed(**more: Any) -> Step:
    return Step(path="/stream", says=b"onetwo", **more)


def failed(**more: Any) -> Step:
    return Step(path="/error", fails=True, status=500, **more)


ANSWERS = (
    Scenario(
        name="counts down, refuses, and admits after exactly Retry-After",
        settings=TWO,
        promises=(1, 4),
        steps=(
            Step(policy=(("default", 2, 60),), state=(("default", 1, 60),)),
            Step(policy=(("default", 2, 60),), state=(("default", 0, 60),)),
            no(60, "default", policy=(("default", 2, 60),), state=(("default", 0, 60),)),
            no(60, "default", wait=0.5, state=(("default", 0, 60),)),
            no(1, "default", wait=58.5, state=(("default", 0, 1),)),
            Step(wait=1, state=(("default", 0, 30),)),
        ),
    ),
    Scenario(
        name="an answer after part of a second still names enough",
        settings={"limits": "4/minute burst 1 using token_bucket"},
        promises=(4,),
        steps=(
            Step(policy=(("default", 4, 60, 1),), state=(("default", 0, 15),)),
            no(14, "default", wait=1.000001, state=(("default", 0, 14),)),
            Step(wait=14, state=(("default", 0, 15),)),
        ),
    ),
    Scenario(
        name="HEAD shares GET's bucket and has no body",
        settings={"limits": "9/hour", "rules": [{"path": "/page", "methods": ["GET"], "limits": "2/minute"}]},
        steps=(
            Step(path="/page", state=(("GET_page", 1, 60),)),
            Step(method="HEAD", path="/page", state=(("GET_page", 0, 60),)),
            no(60, "GET_page", method="HEAD", path="/page", state=(("GET_page", 0, 60),)),
            no(60, "GET_page", path="/page", state=(("GET_page", 0, 60),)),
            Step(method="POST", path="/page", state=(("default", 8, 3600),)),
        ),
    ),
    Scenario(
        name="of several limits the one that binds stands first",
        settings={"limits": "4/minute; 2/hour"},
        promises=(2,),
        steps=(
            Step(
                state=(("default-2", 1, 3600), ("default", 3, 60)),
                policy=(("default-2", 2, 3600), ("default", 4, 60)),
            ),
            Step(state=(("default-2", 0, 3600), ("default", 2, 60))),
            no(3600, "default-2", state=(("default-2", 0, 3600), ("default", 2, 60))),
            no(3540, "default-2", wait=60, state=(("default-2", 0, 3540), ("default", 3, 30))),
        ),
    ),
    Scenario(
        name="all limits that refuse are named, and the longest wait is told",
        settings={"limits": "1/minute; 1/hour"},
        steps=(
            Step(state=(("default-2", 0, 3600), ("default", 0, 60))),
            no(3600, "default", "default-2", state=(("default-2", 0, 3600), ("default", 0, 60))),
        ),
    ),
    Scenario(
        name="a limit over all clients is shown only when it refuses",
        settings={"limits": ALL},
        steps=(
            Step(client="192.0.2.1", state=(("default-2", 8, 3600),)),
            Step(client="192.0.2.2", state=(("default-2", 8, 3600),)),
            no(60, "default", client="192.0.2.3", state=(("default", 0, 60), ("default-2", 9, 3600))),
        ),
    ),
    Scenario(
        name="a limit over all clients alone has no fields",
        settings={"limits": "1/minute", "key": "all", "headers": "both"},
        steps=(
            Step(client="192.0.2.1"),
            no(60, "default", client="192.0.2.2", state=(("default", 0, 60),), legacy=(1, 0, 60)),
        ),
    ),
    Scenario(
        name="legacy fields",
        settings={**TWO, "headers": "legacy"},
        steps=(
            Step(legacy=(2, 1, 60)),
            Step(wait=10, legacy=(2, 0, 80)),
            no(50, "default", legacy=(2, 0, 80)),
        ),
    ),
    Scenario(
        name="legacy fields tell of the client's own limit, not of the one over all",
        settings={"limits": ALL, "headers": "legacy"},
        steps=(Step(client="192.0.2.1", legacy=(9, 8, 3600)), Step(client="192.0.2.2", legacy=(9, 8, 3600))),
    ),
    Scenario(
        name="both kinds of fields",
        settings={**TWO, "headers": "both"},
        steps=(Step(state=(("default", 1, 60),), legacy=(2, 1, 60)),),
    ),
    Scenario(
        name="no fields, but Retry-After",
        settings={**TWO, "headers": "none"},
        steps=(Step(), Step(), no(60, "default")),
    ),
    Scenario(
        name="a request may cost more, or nothing",
        settings={
            "limits": [{"limit": "10/minute", "cost": 4, "name": "heavy"}],
            "rules": [{"path": "/free", "limits": [{"limit": "1/minute", "cost": 0}]}],
        },
        steps=(
            Step(state=(("heavy", 6, 60),)),
            Step(state=(("heavy", 2, 60),)),
            no(68, "heavy", state=(("heavy", 2, 60),)),
            Step(wait=68, state=(("heavy", 0, 7),)),
            Step(path="/free", state=(("free", 1, 60),)),
            Step(path="/free", state=(("free", 1, 60),)),
        ),
    ),
    Scenario(
        name="shadow decides and reports, but never refuses",
        settings={"limits": "1/minute", "shadow": True, "headers": "both"},
        steps=(Step(), Step(), Step(method="POST")),
    ),
    Scenario(
        name="a shadow beside a limit",
        settings={"limits": [{"limit": "1/minute", "shadow": True, "name": "tried"}, "3/minute"]},
        steps=(
            Step(state=(("default-2", 2, 60),)),
            Step(state=(("default-2", 1, 60),)),
            Step(state=(("default-2", 0, 60),)),
            no(60, "default-2", state=(("default-2", 0, 60),)),
        ),
    ),
    Scenario(
        name="switched off",
        settings={"limits": "1/minute", "enabled": False},
        steps=(Step(asked=0, source=""), Step(asked=0, source="")),
    ),
    Scenario(
        name="no limits, in words",
        settings={"limits": [], "rules": [{"path": "/login", "limits": "1/minute"}]},
        steps=(
            Step(asked=0, source=""),
            Step(path="/login", state=(("login", 0, 60),)),
            no(60, "login", path="/login", state=(("login", 0, 60),)),
        ),
    ),
    Scenario(
        name="an app that streams",
        settings=TWO,
        steps=(
            streamed(policy=(("default", 2, 60),), state=(("default", 1, 60),)),
            streamed(method="POST", state=(("default", 0, 60),)),
            no(60, "default", path="/stream", state=(("default", 0, 60),)),
            streamed(wait=60, state=(("default", 0, 30),)),
        ),
    ),
    Scenario(
        name="an app that raises has been asked, and is charged for",
        settings={"limits": "3/minute", "headers": "both"},
        steps=(
            failed(state=(("default", 2, 60),), legacy=(3, 2, 60)),
            failed(method="POST", state=(("default", 1, 60),), legacy=(3, 1, 90)),
            Step(state=(("default", 0, 60),), legacy=(3, 0, 100)),
            no(60, "default", path="/error", state=(("default", 0, 60),), legacy=(3, 0, 100)),
        ),
    ),
    Scenario(
        name="an app that raises while the store is down",
        settings={"limits": "1/minute", "on_store_error": "allow"},
        promises=(8,),
        steps=(
            failed(broken=True),
            failed(state=(("default", 0, 60),)),
            no(60, "default", state=(("default", 0, 60),)),
        ),
    ),
)
