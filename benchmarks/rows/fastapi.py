"""Rows of the time that a limit on a route adds to a request to FastAPI, which is called as a server calls it."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.lab import Lab, package, part
from benchmarks.ours.asgi import contender, held
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import NONE


def _app(*dependencies: Any) -> Any:
    fastapi = package("fastapi")
    app = fastapi.FastAPI()
    depends = [fastapi.Depends(dependency) for dependency in dependencies]
    app.add_api_route("/items/{number}", _item, dependencies=depends)
    return app


async def _nothing() -> None:
    """Do nothing, as a dependency. It shows what each dependency costs in FastAPI itself."""


async def _item(number: str) -> str:
    return number


def _floor(lab: Lab) -> Contender:
    return contender(lab, _app())


def _ours(lab: Lab) -> Contender:
    dependency = part("ratelimit_mw.fastapi", "RateLimit")
    return held(lab, lambda quota: _app(dependency(f"{quota}/hour")))


def _fastapi_limiter(lab: Lab) -> Contender:
    dependency = package("fastapi_limiter.depends", "fastapi-limiter").RateLimiter
    pyrate = package("pyrate_limiter", "pyrate-limiter")

    def make(quota: int) -> Any:
        limiter = pyrate.Limiter(pyrate.Rate(quota, pyrate.Duration.HOUR))  # in memory
        lab.closing.callback(limiter.close)
        return _app(dependency(limiter=limiter))

    return held(lab, make, NONE)


ROWS: Final[Sequence[Row]] = [
    Race(
        name="fastapi",
        what="added to a request by a dependency, headers on / fastapi-limiter's, one bucket for all, no headers",
        ours=_ours,
        peer=_fastapi_limiter,
        floor=_floor,
        target=0.62,
        calls=500,
    ),
    Race(
        name="fastapi-beyond-empty",
        what="added to a request by a dependency, beyond an empty one, headers on / fastapi-limiter's, no headers",
        ours=_ours,
        peer=_fastapi_limiter,
        floor=lambda lab: contender(lab, _app(_nothing)),
        target=0.9,
        calls=500,
    ),
]
