"""Many rules, and requests to all of their paths and methods, and to paths without a rule."""

import random
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from benchmarks.lab import Lab
from benchmarks.ours.asgi import SCOPE, App, bare, drive, receive
from benchmarks.runner import Batch, Contender, Setup
from ratelimit_mw.asgi import RateLimitMiddleware

MANY: Final = 500
FEW: Final = 5
_BEYOND: Final = MANY * 6 // 5  # so that one request in six has a path without a rule
_REQUESTS: Final = 2000  # all different, except for the literal paths
_METHODS: Final = ("GET", "GET", "POST", "DELETE")  # of requests
_ONLY: Final[Sequence[tuple[str, ...]]] = ((), ("GET",), ("POST", "PUT"), ())  # of rules; () means all methods


class Call(NamedTuple):
    """A request, and the number of the rule whose path it has."""

    number: int
    method: str
    path: str


def template(number: int) -> str:
    """Return a rule's path: literal, with a parameter, or with the rest of the path as a parameter."""
    return (f"/r{number}", f"/r{number}/{{id}}", f"/api/r{number}/{{rest:path}}")[number % 3]


def rules(count: int) -> list[Mapping[str, Any]]:
    """Return rules of all kinds. Every second one names methods."""
    return [
        {"name": f"r{n}", "path": template(n), "methods": _ONLY[n % 4], "limits": f"{10**7}/minute"}
        for n in range(count)
    ]


def calls_made() -> list[Call]:
    """Return the requests, which are the same in every run."""
    chance = random.Random(1)  # noqa: S311  # no secret
    made = []
    for identity in range(_REQUESTS):
        number = chance.randrange(_BEYOND)
        path = template(number).replace("{id}", str(identity)).replace("{rest:path}", f"v2/items/{identity}")
        made.append(Call(number, chance.choice(_METHODS), path))
    return made


def rule_of(call: Call, count: int) -> str:
    """Return the name of the rule that applies to a call if there are `count` rules."""
    only = _ONLY[call.number % 4]
    return f"r{call.number}" if call.number < count and (not only or call.method in only) else "default"


def _scope(call: Call) -> Mapping[str, Any]:
    return {**SCOPE, "method": call.method, "path": call.path, "raw_path": call.path.encode()}


def _spread(lab: Lab, app: App) -> Contender:
    """Return a contender that sends the requests. Each turn continues where the last one ended."""
    scopes = cycle([_scope(call) for call in calls_made()])

    def batch(calls: int) -> Batch:
        return lab.wait(drive(app, [*islice(scopes, calls)]))

    return batch


def floor(lab: Lab) -> Contender:
    """Set up the app without any middleware."""
    return _spread(lab, bare)


def under(count: int) -> Setup:
    """Set up the middleware with `count` rules, after checking which rule applies to each request."""

    def setup(lab: Lab) -> Contender:
        app = RateLimitMiddleware(bare, limits=f"{10**7}/minute", rules=rules(count))
        lab.wait(_check(app, count))
        return _spread(lab, app)

    return setup


async def _check(app: App, count: int) -> None:
    async def send(_: Any) -> None:
        pass

    for call in calls_made():
        state: dict[str, Any] = {}
        await app({**_scope(call), "state": state}, receive, send)
        found, wanted = state["ratelimit"].verdict.rule, rule_of(call, count)
        assert found == wanted, f"{call.method} {call.path}: {found}, not {wanted}"


many: Final = under(MANY)
few: Final = under(FEW)
