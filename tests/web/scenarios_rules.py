"""Scenarios: which rules apply, and how paths are read."""

from web.scenario import Scenario, Step, no

LOGIN = {"path": "/login", "methods": ["POST"], "limits": "2/minute", "name": "login"}
PAGES = {"limits": "9/hour", "rules": [{"path": "/login", "limits": "3/minute"}]}


def both(login: int, default: int) -> tuple[tuple[str, int, int], ...]:
    """Return the RateLimit items if the two forms of a path match the rule and the default limits."""
    return (("login", login, 60), ("default", default, 3600))


RULES = (
    Scenario(
        name="a final rule stands in for the default, and only for its methods",
        settings={"limits": "9/hour", "rules": [LOGIN]},
        steps=(
            Step(method="POST", path="/login", state=(("login", 1, 60),)),
            Step(path="/login", state=(("default", 8, 3600),)),
            Step(method="POST", path="/login", state=(("login", 0, 60),)),
            no(60, "login", method="POST", path="/login", state=(("login", 0, 60),)),
            Step(state=(("default", 7, 3600),)),
        ),
    ),
    Scenario(
        name="a rule that is not final adds to what follows",
        settings={
            "limits": "9/hour",
            "rules": [
                {"path": "/api/{rest:path}", "limits": "5/minute", "name": "api", "final": False},
                {"path": "/api/reports/{id}", "limits": "2/minute", "name": "reports"},
                {"path": "/api/reports/{id}", "limits": "1/minute", "name": "never"},
            ],
        },
        steps=(
            Step(path="/api/reports/7", state=(("reports", 1, 60), ("api", 4, 60))),
            Step(path="/api/users", state=(("api", 3, 60), ("default", 8, 3600))),
            Step(path="/api/reports/8", state=(("reports", 0, 60), ("api", 2, 60))),
            no(60, "reports", path="/api/reports/9", state=(("reports", 0, 60), ("api", 2, 60))),
        ),
    ),
    Scenario(
        name="a shadow rule is never final",
        settings={"limits": "2/minute", "rules": [{"path": "/new", "limits": "1/minute", "shadow": True}]},
        steps=(
            Step(path="/new", state=(("default", 1, 60),)),
            Step(path="/new", state=(("default", 0, 60),)),
            no(60, "default", path="/new", state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="app_limits count every request besides its rule",
        settings={"limits": "8/hour", "app_limits": "3/minute", "rules": [{"path": "/a", "limits": "9/hour"}]},
        promises=(2,),
        steps=(
            Step(path="/a", state=(("app", 2, 60), ("a", 8, 3600))),
            Step(path="/b", state=(("app", 1, 60), ("default", 7, 3600))),
            Step(path="/a", state=(("app", 0, 60), ("a", 7, 3600))),
            no(60, "app", path="/a", state=(("app", 0, 60), ("a", 7, 3600))),
            no(60, "app", path="/b", state=(("app", 0, 60), ("default", 7, 3600))),
        ),
    ),
    Scenario(
        name="several paths of a rule are one bucket",
        settings={"limits": "9/hour", "rules": [{"path": ["/a", "/b/{id:int}"], "limits": "2/minute", "name": "ab"}]},
        steps=(
            Step(path="/a", state=(("ab", 1, 60),)),
            Step(path="/b/12", state=(("ab", 0, 60),)),
            no(60, "ab", path="/a", state=(("ab", 0, 60),)),
            Step(path="/b/x", state=(("default", 8, 3600),)),
        ),
    ),
    Scenario(
        name="what the app does not route is limited",
        settings={"limits": "1/minute"},
        promises=(9,),
        steps=(
            Step(method="DELETE", path="/nowhere", status=405, state=(("default", 0, 60),)),
            no(60, "default", method="DELETE", path="/nowhere", state=(("default", 0, 60),)),
            no(60, "default", method="GET", path="/else", state=(("default", 0, 60),)),
        ),
    ),
    Scenario(
        name="another spelling of a path adds limits and removes none",
        settings=PAGES,
        promises=(9, 10),
        steps=(
            Step(path="//login", state=both(2, 8)),
            Step(path="/a/../login", state=both(1, 7)),
            Step(path="/login/", state=both(0, 6)),
            no(60, "login", path="/./login", state=both(0, 6)),
            no(60, "login", path="//x//..//login//", state=both(0, 6)),
            no(60, "login", path="/login", state=(("login", 0, 60),)),
            Step(path="/login/x", state=(("default", 5, 3600),)),
        ),
    ),
    Scenario(
        name="two spellings of a path that meet different rules are charged for both",
        settings={
            "limits": "9/hour",
            "rules": [{"path": "/pub/{rest:path}", "limits": "8/hour"}, {"path": "/login", "limits": "2/minute"}],
        },
        promises=(10,),
        steps=(Step(path="/pub/../login", state=(("login", 1, 60), ("pub_rest_path", 7, 3600))),),
    ),
    Scenario(
        name="slashes at the start of a path and dots in it hide no endpoint",
        settings={"limits": "9/hour", "rules": [{"path": "/search/{q:path}", "limits": "2/minute", "name": "search"}]},
        promises=(9, 10),
        steps=(
            Step(path="//search/../secret", state=(("search", 1, 60), ("default", 8, 3600))),
            Step(path="///search/x/../../secret", state=(("search", 0, 60), ("default", 7, 3600))),
            no(60, "search", path="//search/./../x", state=(("search", 0, 60), ("default", 7, 3600))),
        ),
    ),
    Scenario(
        name="a number is all that a router takes for one",
        settings={"limits": "9/hour", "rules": [{"path": "/users/{id:int}", "limits": "3/minute", "name": "users"}]},
        promises=(9,),
        steps=(
            Step(path="/users/5", state=(("users", 2, 60),)),
            Step(path="/users/-5", state=(("users", 1, 60), ("default", 8, 3600))),
            Step(path="/users/5_0", state=(("users", 0, 60), ("default", 7, 3600))),
            no(60, "users", path="/users/+5", state=(("users", 0, 60), ("default", 7, 3600))),
            Step(path="/users/x", state=(("default", 6, 3600),)),
        ),
    ),
    Scenario(
        name="a rule may be written with a slash at its end",
        settings={"limits": "9/hour", "rules": [{"path": "/login/", "limits": "4/minute"}]},
        promises=(9, 10),
        steps=(
            Step(path="/login/", state=(("login", 3, 60),)),
            Step(path="//login/", state=(("login", 2, 60), ("default", 8, 3600))),
            Step(path="/login", state=(("login", 1, 60), ("default", 7, 3600))),
        ),
    ),
    Scenario(
        name="an exemption needs both forms of the path",
        settings={"limits": "9/hour", "exempt": ["/health", "/static/{path:path}", "/up/"]},
        promises=(9, 10),
        steps=(
            Step(path="/health", asked=0, source=""),
            Step(path="/static/a/b.css", asked=0, source=""),
            Step(path="/up/", asked=0, source=""),
            Step(path="/health/", state=(("default", 8, 3600),)),
            Step(path="//health", state=(("default", 7, 3600),)),
            Step(path="/login/../health", state=(("default", 6, 3600),)),
            Step(path="/static/../login", state=(("default", 5, 3600),)),
            Step(path="/up", state=(("default", 4, 3600),)),
            Step(path="/healthy", state=(("default", 3, 3600),)),
        ),
    ),
    Scenario(
        name="an exempt rule skips the default limits, and not those of the app",
        settings={
            "limits": "9/hour",
            "app_limits": "4/minute",
            "rules": [{"path": "/hook", "exempt": True}, {"path": "/hook", "limits": "1/hour", "name": "later"}],
        },
        promises=(9,),
        steps=(
            Step(path="/hook", state=(("app", 3, 60),)),
            Step(path="//hook", state=(("app", 2, 60), ("default", 8, 3600))),
            Step(path="/", state=(("app", 1, 60), ("default", 7, 3600))),
        ),
    ),
    Scenario(
        name="paths are read below the app's root",
        settings=PAGES,
        promises=(10,),
        steps=(
            Step(path="/login", root="/sub", state=(("login", 2, 60),)),
            Step(path="/login", root="/sub/two", state=(("login", 1, 60),)),
            Step(path="/sub/login", root="/sub", state=(("default", 8, 3600),)),
            Step(path="//login", root="/sub", state=(("login", 0, 60), ("default", 7, 3600))),
        ),
    ),
    Scenario(
        name="a path that is not ASCII",
        settings={"limits": "9/hour", "rules": [{"path": "/käse/{sorte}", "limits": "2/minute", "name": "cheese"}]},
        steps=(
            Step(path="/käse/añejo", state=(("cheese", 1, 60),)),
            Step(path="/kase/añejo", state=(("default", 8, 3600),)),
        ),
    ),
)
