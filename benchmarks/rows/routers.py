"""Rows of the requests admitted to a route of a FastAPI router and to one of the app, with default limits alone.

FastAPI 0.137 made `app.routes` a tree. A limiter that looks for the route there, and exempts requests without one,
admits everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.ours.asgi import SCOPE, Answers, App, receive
from benchmarks.runner import Row
from ratelimit_mw.asgi import RateLimitMiddleware

_LIMIT: Final = 2
_NOTATION: Final = f"{_LIMIT}/minute"
_CALLS: Final = 10
_ANSWERS: Final = {200, 429}

Protect = Callable[[Any], str]  # adds a limiter to a FastAPI app and returns the limiter's name; raises Missing


@dataclass(frozen=True, kw_only=True)
class Admits:
    """A row of how many requests to a route are admitted. `ours`: any number but the limit's is a problem."""

    name: str
    what: str
    path: str
    protect: Protect
    ours: bool = False

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return one line, without numbers if something is missing."""
        calls = lab.calls or _CALLS
        right = min(calls, _LIMIT)
        try:
            app, by = _app(self.protect)
        except Missing as missing:
            skipped = (f"skipped, {missing}",)
            return [Line(row=self.name, what=self.what, unit="admitted", target=right, notes=skipped)]
        answers = lab.wait(_ask(app, self.path, calls))
        problems = (f"{answers.admitted} admitted, not {right}",) if self.ours and answers.admitted != right else ()
        return [
            Line(
                row=self.name,
                what=self.what,
                unit="admitted",
                values=(answers.admitted,),
                target=right,
                admitted=answers.admitted,
                refused=answers.refused,
                notes=(by,),
                problems=problems,
            )
        ]


def _app(protect: Protect) -> tuple[App, str]:
    """Return an app with a route of its own and a route of a router that it includes, and the limiter's name."""
    fastapi = package("fastapi")
    app, router = fastapi.FastAPI(), fastapi.APIRouter()
    app.add_api_route("/direct", _direct)
    router.add_api_route("/items", _items)
    app.include_router(router, prefix="/included")
    return app, f"{protect(app)}, fastapi {version('fastapi')}"


async def _direct() -> str:
    return "hello"


async def _items() -> str:  # a second function, because slowapi counts by the function's name
    return "hello"


async def _ask(app: App, path: str, calls: int) -> Answers:
    answers = Answers()
    for _ in range(calls):
        await app({**SCOPE, "path": path, "raw_path": path.encode(), "state": {}}, receive, answers.send)
        assert answers.status in _ANSWERS, answers.status
    return answers


def _by_ours(app: Any) -> str:
    app.add_middleware(RateLimitMiddleware, limits=_NOTATION)
    return "ratelimit-mw"


def _by_slowapi(middleware: str) -> Protect:
    def protect(app: Any) -> str:
        slowapi = package("slowapi")
        who = package("slowapi.util").get_remote_address
        app.state.limiter = slowapi.Limiter(key_func=who, default_limits=[_NOTATION])
        app.add_middleware(getattr(package("slowapi.middleware"), middleware))
        return f"slowapi {version('slowapi')}"

    return protect


ROWS: Final[Sequence[Row]] = [
    Admits(
        name=f"routers-{route}{suffix}",
        what=f"{whose}: requests to {path} under {_NOTATION}",
        path=path,
        protect=protect,
        ours=not suffix,
    )
    for route, path in (("direct", "/direct"), ("included", "/included/items"))
    for suffix, whose, protect in (
        ("", "ours", _by_ours),
        ("-slowapi", "SlowAPIMiddleware", _by_slowapi("SlowAPIMiddleware")),
        ("-slowapi-asgi", "SlowAPIASGIMiddleware", _by_slowapi("SlowAPIASGIMiddleware")),
    )
]
