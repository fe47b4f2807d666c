"""Scenarios: charges that the app makes in its handlers, `5/hour` for the key in the path."""

from web.scenario import Scenario, Step, no

CHARGES = (
    Scenario(
        name="a charge in a handler is refused as by the middleware, and takes nothing then",
        settings={"limits": "9/minute"},
        steps=(
            Step(path="/charge/search/3", state=(("default", 8, 60),), asked=2),
            no(3600, "charge", path="/charge/search/3", state=(("charge", 2, 3600), ("default", 7, 60)), asked=2),
            Step(path="/charge/search/2", client="192.0.2.2", state=(("default", 8, 60),), asked=2),
            Step(path="/charge/other/5", state=(("default", 6, 60),), asked=2),
            no(None, "charge", path="/charge/other/6", state=(("charge", 0, 3600), ("default", 5, 60)), asked=2),
            no(
                3599,
                "charge",
                path="/charge/search/1",
                wait=1,
                state=(("charge", 0, 3599), ("default", 4, 59)),
                asked=2,
            ),
        ),
    ),
    Scenario(
        name="a charge needs no other limit, and while the store fails, this process decides",
        settings={"limits": []},
        steps=(
            Step(path="/charge/a/5", source="", asked=1),
            no(3600, "charge", path="/charge/a/1", state=(("charge", 0, 3600),), policy=(("charge", 5, 3600),)),
            Step(path="/charge/b/5", source="", broken=True),
            no(3600, "charge", path="/charge/b/1", state=(("charge", 0, 3600),), broken=True),
        ),
    ),
    Scenario(
        name="in shadow, a charge refuses no request",
        settings={"limits": [], "shadow": True},
        steps=(Step(path="/charge/a/9", source="", asked=1), Step(path="/charge/a/9", source="", asked=1)),
    ),
)
