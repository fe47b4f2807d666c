"""Scenarios: a client that is refused repeatedly is banned for a while."""

from typing import Any

from web.scenario import Scenario, Step, no

LOGIN: dict[str, Any] = {
    "name": "login",
    "path": "/login",
    "limits": "2/minute using fixed_window",
    "penalty": "3 refusals per minute: 15 minutes",
}
BANNED: dict[str, Any] = {"path": "/login", "state": (("login-penalty", 0, 840), ("login", 2, 60))}

PENALTY = (
    Scenario(
        name="the third refusal starts a ban, which nothing makes longer",
        settings={"limits": "9/hour", "rules": [LOGIN]},
        promises=(1, 2, 4),
        steps=(
            Step(path="/login", state=(("login", 1, 60),)),
            Step(path="/login", state=(("login", 0, 60),)),
            no(60, "login", path="/login", state=(("login", 0, 60),)),
            no(60, "login", path="/login", state=(("login", 0, 60),)),
            Step(path="/elsewhere", state=(("default", 8, 3600),)),
            no(
                *(900, "login", "login-penalty"),
                path="/login",
                state=(("login-penalty", 0, 900), ("login", 0, 60)),
                policy=(("login-penalty", 3, 60), ("login", 2, 60)),
            ),
            no(840, "login-penalty", wait=60, **BANNED),
            no(840, "login-penalty", **BANNED),
            Step(path="/login", client="192.0.2.2", state=(("login", 1, 60),)),
            Step(path="/elsewhere", state=(("default", 7, 3540),)),
            no(1, "login-penalty", path="/login", wait=839, state=(("login-penalty", 0, 1), ("login", 2, 60))),
            Step(path="/login", wait=1, state=(("login", 1, 60),)),
            Step(path="/login", state=(("login", 0, 60),)),
            no(60, "login", path="/login", state=(("login", 0, 60),)),
        ),
    ),
    Scenario(
        name="the top's penalty counts what any limit refuses, and refuses everywhere",
        settings={
            "limits": "1/minute using fixed_window",
            "penalty": "2/hour: 1 hour",
            "rules": [{"path": "/other", "limits": "5/minute"}],
        },
        steps=(
            Step(state=(("default", 0, 60),)),
            no(60, "default", state=(("default", 0, 60),)),
            Step(path="/other", state=(("other", 4, 60),)),
            no(3600, "app-penalty", "default", state=(("app-penalty", 0, 3600), ("default", 0, 60))),
            no(3600, "app-penalty", path="/other", state=(("app-penalty", 0, 3600), ("other", 4, 60))),
            Step(path="/other", wait=3600, state=(("other", 4, 60),)),
        ),
    ),
    Scenario(
        name="what only shadows is not banned",
        settings={
            "limits": "1/minute using fixed_window",
            "rules": [{**LOGIN, "shadow": True, "penalty": "1/minute: 15 minutes"}],
        },
        steps=(
            Step(path="/login", state=(("default", 0, 60),)),
            no(60, "default", path="/login", state=(("default", 0, 60),)),
            no(60, "default", path="/login", state=(("default", 0, 60),)),
            Step(path="/login", wait=60, state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="what a limit of everybody refuses bans nobody",
        settings={
            "limits": "9/hour",
            "rules": [
                {
                    **LOGIN,
                    "limits": [
                        {"limit": "3/minute using fixed_window", "key": "all"},
                        {"limit": "2/hour using fixed_window", "key": "ip"},
                    ],
                    "penalty": "2 refusals per day: 1 week",
                    "key": "ip",
                }
            ],
        },
        promises=(2, 10),
        steps=(
            Step(path="/login", state=(("login-2", 1, 3600),)),
            Step(path="/login", client="192.0.2.2", state=(("login-2", 1, 3600),)),
            Step(path="/login", client="192.0.2.3", state=(("login-2", 1, 3600),)),
            *[no(60, "login", path="/login", state=(("login", 0, 60), ("login-2", 1, 3600)))] * 4,
            Step(path="/login", wait=60, state=(("login-2", 0, 3540),)),
            no(3540, "login-2", path="/login", state=(("login-2", 0, 3540),)),
            no(
                *(604800, "login-2", "login-penalty"),
                path="/login",
                state=(("login-penalty", 0, 604800), ("login-2", 0, 3540)),
            ),
            Step(path="/login", client="192.0.2.3", state=(("login-2", 0, 3540),)),
        ),
    ),
    Scenario(
        name="who has no key shares a limit, and no ban",
        settings={
            "limits": [],
            "rules": [{**LOGIN, "key": "header:x-key", "penalty": "1 refusal per minute: 15 minutes"}],
        },
        promises=(10,),
        steps=(
            *[Step(path="/login", state=(("login", left, 60),)) for left in (1, 0)],
            *[no(60, "login", path="/login", state=(("login", 0, 60),))] * 3,
            Step(path="/login", headers={"x-key": "ann"}, state=(("login", 1, 60),)),
            Step(path="/login", headers={"x-key": "ann"}, state=(("login", 0, 60),)),
            no(
                *(900, "login", "login-penalty"),
                path="/login",
                headers={"x-key": "ann"},
                state=(("login-penalty", 0, 900), ("login", 0, 60)),
            ),
            Step(path="/login", wait=60, state=(("login", 1, 60),)),
        ),
    ),
    Scenario(
        name="while the store fails refusals are counted here",
        settings={"limits": "9/hour", "rules": [{**LOGIN, "limits": "1/minute using fixed_window"}]},
        steps=(
            Step(path="/login", broken=True, source="local", state=(("login", 0, 60),)),
            no(60, "login", path="/login", broken=True, state=(("login", 0, 60),)),
            no(60, "login", path="/login", broken=True, state=(("login", 0, 60),)),
            no(
                *(900, "login", "login-penalty"),
                path="/login",
                broken=True,
                state=(("login-penalty", 0, 900), ("login", 0, 60)),
            ),
            Step(path="/login", state=(("login", 0, 60),)),
        ),
    ),
)
