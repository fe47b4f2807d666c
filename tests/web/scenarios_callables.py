"""Scenarios: callables choose the rules, the cost and the limits of a request."""

from collections.abc import Awaitable, Callable
from typing import Any

from ratelimit_mw import SlidingWindowCounter
from ratelimit_mw.http.request import Request
from web.scenario import Scenario, State, Step, free, no

ROOT = {"path": "/", "name": "ruled"}


def says(answer: Any) -> Callable[[Request], Any]:
    return lambda _: answer


def raises(request: Request) -> Any:
    raise LookupError(request.path)


def later(request: Request) -> Awaitable[bool]:
    async def answer() -> bool:
        return False

    return answer()


def is_api(request: Request) -> bool:
    return request.headers.get("x-api") == "1"


def weight(request: Request) -> int:
    return int(request.headers["x-weight"])


def limits_of(request: Request) -> Any:
    return CHOSEN[request.headers["x-plan"]]


CHOSEN: dict[str, Any] = {
    "notation": "9/hour; 20/day",
    "limit": SlidingWindowCounter(8, 3600),
    "table": {"limit": "7/hour", "name": "tabled", "cost": 2},
    "list": ["6/hour", {"limit": "30/day", "key": "all"}, SlidingWindowCounter(25, 86400, name="third")],
    "none": [],
    "tuple": (),
    "shadow": {"limit": "1/hour", "shadow": True},
}
TWICE = {"limit": "5/minute using gcra", "max_delay": 3}  # invalid together with another limit of the same bucket
NO_LIMITS: dict[str, Any] = {
    "gives two limits of one bucket": says(["5/minute using gcra", {**TWICE, "key": "user | ip"}]),
    "gives two limits that some clients have in one bucket": says([TWICE, {**TWICE, "key": "ip", "shadow": True}]),
    "raises": raises,
    "gives None": says(None),
    "gives no notation": says("lots"),
    "gives an empty text": says(""),
    "gives a number": says(5),
    "gives True": says(True),
    "gives an object": says(object()),
    "gives a table of tiers": says({"free": "1/hour"}),
    "gives one that is wrong among others": says(["5/hour", "lots"]),
    "gives the same twice": says(["5/hour", "5/hour"]),
    "gives a window that holds back": says({"limit": "5/hour", "max_delay": 2}),
    "gives a wrong cost": says({"limit": "5/hour", "cost": -1}),
    "gives a cost that nobody asks": says({"limit": "5/hour", "cost": weight}),
    "gives a key that nobody asks": says({"limit": "5/hour", "key": weight}),
    "gives a wrong key": says({"limit": "5/hour", "key": "nope"}),
}


def left(remaining: int, of: str = "default") -> tuple[State, ...]:
    return ((of, remaining, 3600),)


def when(call: Any, **more: Any) -> dict[str, Any]:
    return {"limits": "9/hour", "rules": [{**ROOT, "limits": "5/hour", "when": call, **more}]}


def planned(name: str, **more: Any) -> Step:
    return Step(headers={"X-Plan": name}, **more)


def weighs(cost: int | str, **more: Any) -> Step:
    return Step(headers={"X-Weight": str(cost)}, **more)


WHEN = (
    Scenario(
        name="when: the rule applies, or is passed by",
        settings=when("call:web.scenarios_callables:is_api"),
        steps=(
            Step(headers={"X-Api": "1"}, state=left(4, "ruled")),
            Step(state=left(8)),
            Step(path="/b", state=left(7)),
        ),
    ),
    Scenario(
        name="when: a rule that is passed by leaves its place to the next",
        settings={
            "limits": "9/hour",
            "rules": [{**ROOT, "limits": "5/hour", "when": is_api}, {"path": "/", "limits": "7/hour", "name": "next"}],
        },
        steps=(Step(headers={"X-Api": "1"}, state=left(4, "ruled")), Step(state=left(6, "next"))),
    ),
    *(
        Scenario(
            name=f"when: a callable that {name} frees nobody: the rule applies, and what follows too",
            settings=when(call),
            promises=(9,),
            steps=(Step(state=(*left(4, "ruled"), *left(8))), Step(path="//", state=(*left(3, "ruled"), *left(7)))),
        )
        for name, call in {
            "raises": raises,
            "says nothing": says(None),
            "says 0": says(0),
            "says a text": says("no"),
            "says it later": later,
        }.items()
    ),
    Scenario(
        name="when: a callable that raises leads to the next final rule, which ends the search",
        settings={
            "limits": "9/hour",
            "rules": [{**ROOT, "limits": "5/hour", "when": raises}, {"path": "/", "limits": "7/hour", "name": "next"}],
        },
        promises=(9,),
        steps=(Step(state=(*left(4, "ruled"), *left(6, "next"))),),
    ),
    Scenario(
        name="when: an exemption whose callable raises is none",
        settings={"limits": "9/hour", "rules": [{"path": "/", "exempt": True, "when": raises}]},
        promises=(9,),
        steps=(Step(state=left(8)),),
    ),
)
COSTS = (
    Scenario(
        name="a rule's cost, by a callable",
        settings={"limits": "9/hour", "rules": [{**ROOT, "limits": "10/hour; 50/day", "cost": weight}]},
        steps=(
            weighs(3, state=(("ruled", 7, 3600), ("ruled-2", 47, 86400))),
            weighs(0, state=(("ruled", 7, 3600), ("ruled-2", 47, 86400))),
            weighs("many", state=(("ruled", 6, 3600), ("ruled-2", 46, 86400))),
            weighs(-1, state=(("ruled", 5, 3600), ("ruled-2", 45, 86400))),
            weighs(5, state=(("ruled", 0, 3600), ("ruled-2", 40, 86400))),
            weighs(0, state=(("ruled", 0, 3600), ("ruled-2", 40, 86400))),
        ),
    ),
    Scenario(
        name="a cost over the quota never passes, and is told so",
        settings={"limits": "9/hour", "rules": [{**ROOT, "limits": "10/hour", "cost": weight}]},
        promises=(4,),
        steps=(
            weighs(11, status=429, violated=("ruled",), state=left(10, "ruled")),
            weighs(2**53 - 1, status=429, violated=("ruled",), state=left(10, "ruled")),
            weighs(2**53, status=429, violated=("ruled",), state=left(10, "ruled")),
            weighs(10**400, status=429, violated=("ruled",), state=left(10, "ruled")),
            weighs(10, state=left(0, "ruled")),
        ),
    ),
    Scenario(
        name="a quota of 0 admits nothing, whatever the cost, and is told so",
        settings={"limits": "9/hour", "rules": [{**ROOT, "limits": "0/minute; 10/hour", "cost": weight}]},
        promises=(4,),
        steps=(
            weighs(1, status=429, violated=("ruled",), state=(("ruled", 0, None), ("ruled-2", 10, 3600))),
            weighs(5, status=429, violated=("ruled",), state=(("ruled", 0, None), ("ruled-2", 10, 3600)), wait=60),
            weighs(0, state=(("ruled", 0, None), ("ruled-2", 10, 3600))),
        ),
    ),
    Scenario(
        name="a quota of 0 has no time at which it is full",
        settings={"limits": "0/hour", "headers": "both"},
        steps=(Step(status=429, violated=("default",), state=(("default", 0, None),), legacy=(0, 0, None)),),
    ),
    Scenario(
        name="a quota of 0 that a callable or a tier gives is no mistake",
        settings={
            "limits": "9/hour",
            "rules": [
                {**ROOT, "limits": says("0/minute burst 20 using gcra"), "final": False},
                {
                    "path": "/tier",
                    "name": "tiers",
                    "tier": "header:x-plan",
                    "limits": {"a": "0/hour", "b": "5/hour"},
                },
            ],
        },
        steps=(
            Step(status=429, violated=("ruled",), state=(("ruled", 0, None), ("default", 9, 3600))),
            Step(path="/tier", status=429, violated=("tiers",), state=(("tiers", 0, None),), headers={"X-Plan": "a"}),
            Step(path="/tier", state=left(4, "tiers"), headers={"X-Plan": "b"}),
        ),
    ),
    Scenario(
        name="an item's cost goes before its rule's",
        settings={
            "limits": "9/hour",
            "rules": [
                {
                    **ROOT,
                    "cost": 2,
                    "limits": ["10/hour", {"limit": "90/day", "cost": weight}, {"limit": "99/week", "cost": 5}],
                }
            ],
        },
        steps=(
            weighs(3, state=(("ruled", 8, 3600), ("ruled-2", 87, 86400), ("ruled-3", 94, 604800))),
            Step(state=(("ruled", 6, 3600), ("ruled-2", 86, 86400), ("ruled-3", 89, 604800))),
        ),
    ),
)
ITEMS = (
    Scenario(
        name="an item has its own key, cost, name and shadow",
        settings={
            "limits": [
                {"limit": "4/hour", "key": "all", "name": "everybody"},
                {"limit": "3/hour", "key": "header:x-id | ip", "name": "each", "cost": 1},
                {"limit": "1/hour", "name": "tried", "shadow": True},
            ]
        },
        steps=(
            Step(state=left(2, "each"), policy=(("each", 3, 3600),)),
            Step(headers={"X-Id": "a"}, state=left(2, "each")),
            Step(headers={"X-Id": "a"}, state=left(1, "each")),
            Step(headers={"X-Id": "a"}, state=left(0, "each")),
            no(3600, "everybody", "each", headers={"X-Id": "a"}, state=(*left(0, "everybody"), *left(0, "each"))),
            no(3600, "everybody", state=(*left(0, "everybody"), *left(2, "each"))),
        ),
    ),
    Scenario(
        name="the parameter of the burst stands only where it is not the quota",
        settings={
            "limits": [
                "4/hour burst 4 using token_bucket",
                "8/hour burst 7 using token_bucket",
                "6/hour burst 9 using gcra",
            ]
        },
        steps=(
            Step(
                state=(("default", 3, 900), ("default-2", 6, 450), ("default-3", 6, 600)),
                policy=(("default", 4, 3600), ("default-2", 8, 3600, 7), ("default-3", 6, 3600, 9)),
            ),
        ),
    ),
)
DYNAMIC = (
    Scenario(
        name="limits by a callable: notation, a Limit, a table, a list, none",
        settings={"limits": "99/hour", "rules": [{**ROOT, "limits": "call:web.scenarios_callables:limits_of"}]},
        promises=(9,),
        steps=(
            planned("notation", state=(("ruled", 8, 3600), ("ruled-2", 19, 86400))),
            planned("limit", state=left(7, "ruled")),
            planned("table", state=left(5, "tabled")),
            planned("list", state=(("ruled", 5, 3600), ("third", 24, 86400))),
            planned("notation", state=(("ruled", 7, 3600), ("ruled-2", 18, 86400))),
            free(headers={"X-Plan": "none"}),
            free(headers={"X-Plan": "tuple"}),
            planned("shadow"),
            planned("no such", state=left(98)),
            Step(state=left(97)),
        ),
    ),
    *(
        Scenario(
            name=f"limits: a callable that {name} leaves the default ones",
            settings={"limits": "9/hour", "rules": [{**ROOT, "limits": call}]},
            promises=(9,),
            steps=(Step(state=left(8)), Step(path="//", state=left(7)), Step(path="/b", state=left(6))),
        )
        for name, call in NO_LIMITS.items()
    ),
    Scenario(
        name="limits: several callables that fail leave the default ones once",
        settings={
            "limits": "9/hour",
            "app_limits": raises,
            "rules": [
                {**ROOT, "limits": raises, "final": False},
                {"path": "/", "limits": says(None), "name": "again", "final": False},
                {"path": "/", "limits": "7/hour", "name": "last"},
            ],
        },
        promises=(2, 9),
        steps=(Step(state=(*left(6, "last"), *left(8))), Step(path="/b", state=left(7))),
    ),
    Scenario(
        name="limits: the default ones come from a callable too",
        settings={"limits": limits_of, "rules": [{**ROOT, "limits": says(None)}]},
        steps=(
            planned("limit", state=left(7)),
            planned("limit", path="/b", state=left(6)),
            Step(status=503, retry_after=1, asked=0),
            Step(status=503, retry_after=1, asked=0, path="/b", method="HEAD"),
        ),
    ),
    *(
        Scenario(
            name=f"limits: nobody can say what is allowed where the default's callable {name}",
            settings={"limits": call, "on_store_error": "allow", "rules": [{**ROOT, "limits": "5/hour"}]},
            promises=(9,),
            steps=(Step(status=503, retry_after=1, asked=0, path="/b"), Step(state=left(4, "ruled"))),
        )
        for name, call in {"raises": raises, "gives None": says(None), "gives no notation": says("lots")}.items()
    ),
    Scenario(
        name="limits: a client without a key is denied, although the callable that reads the key fails first",
        settings={"limits": limits_of, "key": "header:x-plan", "missing_key": "deny"},
        steps=(
            planned("limit", state=left(7)),
            Step(status=403, asked=0),
            planned("no such", status=503, retry_after=1, asked=0),
        ),
    ),
    Scenario(
        name="limits: nobody is refused in shadow, whatever a callable does",
        settings={"limits": raises, "shadow": True},
        steps=(free(), free()),
    ),
    Scenario(
        name="limits: a rule's cost and key go for those that its callable gives",
        settings={
            "limits": "9/hour",
            "rules": [{**ROOT, "limits": says("10/hour"), "cost": weight, "key": lambda asked: asked.header("x-id")}],
        },
        steps=(
            weighs(3, lines=(("X-Id", "a"),), state=left(7, "ruled")),
            weighs(3, lines=(("X-Id", "b"),), state=left(7, "ruled")),
            weighs(2, lines=(("X-Id", "a"),), state=left(5, "ruled")),
        ),
    ),
    Scenario(
        name="limits: preflights fall back to their own",
        settings={"limits": "9/hour", "rules": [{"path": "/", "preflight": True, "limits": raises}]},
        promises=(9,),
        steps=(
            Step(
                method="OPTIONS",
                headers={"Origin": "https://x.test", "Access-Control-Request-Method": "GET"},
                state=left(8, "preflight"),
            ),
            Step(state=left(8)),
        ),
    ),
)
CHOICE = (*WHEN, *COSTS, *ITEMS, *DYNAMIC)
