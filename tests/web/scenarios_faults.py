"""Scenarios: the store raises."""

from typing import Any

from web.scenario import Scenario, Step, no


def down(**more: Any) -> Step:
    """A request while the store raises."""
    return Step(broken=True, **more)


FAULTS = (
    Scenario(
        name="allow",
        settings={"limits": "1/minute", "on_store_error": "allow", "headers": "both"},
        promises=(8,),
        steps=(
            down(source="allowed_on_error"),
            down(source="allowed_on_error"),
            Step(state=(("default", 0, 60),), legacy=(1, 0, 60)),
        ),
    ),
    Scenario(
        name="deny",
        settings={"limits": "1/minute", "on_store_error": "deny"},
        promises=(8,),
        steps=(
            down(status=503, retry_after=1),
            down(status=503, retry_after=1, method="HEAD"),
            Step(state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="local: the same limits in this process, from zero, until the store is back",
        settings={"limits": "2/minute"},
        promises=(8,),
        steps=(
            Step(state=(("default", 1, 60),)),
            down(source="local", state=(("default", 1, 60),)),
            down(source="local", state=(("default", 0, 60),)),
            no(60, "default", broken=True, state=(("default", 0, 60),)),
            Step(state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="a rule may say it otherwise, and the strictest word counts",
        settings={
            "limits": "9/hour",
            "on_store_error": "allow",
            "rules": [
                {"path": "/login", "limits": "2/minute", "on_store_error": "deny"},
                {"path": "/search", "limits": "2/minute", "on_store_error": "local", "final": False},
            ],
        },
        promises=(8,),
        steps=(
            down(source="allowed_on_error"),
            down(path="/login", status=503, retry_after=1),
            down(path="//login", status=503, retry_after=1),
            down(path="/search", source="local", state=(("search", 1, 60),)),
        ),
    ),
    Scenario(
        name="a shadow refuses nobody when the store is down",
        settings={"limits": "2/minute", "on_store_error": "deny", "shadow": True},
        promises=(8,),
        steps=(down(source="allowed_on_error"), Step()),
    ),
    Scenario(
        name="a share: what N processes admit together while the store is down is what the limit says",
        settings={"limits": "10/minute", "local_share": 0.25},
        promises=(8,),
        steps=(
            Step(state=(("default", 9, 60),), policy=(("default", 10, 60),)),
            down(source="local", state=(("default", 1, 60),), policy=(("default", 2, 60),)),
            down(source="local", state=(("default", 0, 60),)),
            no(60, "default", broken=True, state=(("default", 0, 60),), policy=(("default", 2, 60),)),
            Step(state=(("default", 8, 60),), policy=(("default", 10, 60),)),
        ),
    ),
    Scenario(
        name="a store that fails again and again renews no quota",
        settings={"limits": "2/hour using fixed_window"},
        promises=(8,),
        steps=(
            Step(state=(("default", 1, 3600),)),
            down(source="local", state=(("default", 1, 3600),)),
            Step(state=(("default", 0, 3600),)),
            down(source="local", state=(("default", 0, 3600),)),
            no(3600, "default", state=(("default", 0, 3600),)),
            no(3600, "default", broken=True, state=(("default", 0, 3600),)),
            no(3000, "default", wait=600, state=(("default", 0, 3000),)),
            no(3000, "default", broken=True, state=(("default", 0, 3000),)),
        ),
    ),
    Scenario(
        name="whom the store refused stays refused while it is down, for as long as it said",
        settings={"limits": ["1/minute using fixed_window", "9/hour using fixed_window"]},
        promises=(8,),
        steps=(
            Step(state=(("default", 0, 60), ("default-2", 8, 3600))),
            no(60, "default", state=(("default", 0, 60), ("default-2", 8, 3600))),
            no(30, "default", wait=30, broken=True, state=(("default", 0, 30), ("default-2", 9, 3600))),
            down(client="192.0.2.2", source="local", state=(("default", 0, 60), ("default-2", 8, 3600))),
            down(wait=30, source="local", state=(("default", 0, 60), ("default-2", 8, 3600))),
        ),
    ),
)
