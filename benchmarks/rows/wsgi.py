"""Rows of the time that a limit adds to a request to a WSGI app, which is called as a server calls it."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.lab import Lab, package, part
from benchmarks.ours.wsgi import contender, floor, held, limited, spent
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import LEGACY
from ratelimit_mw.wsgi import RateLimitMiddleware


def _app() -> Any:
    app = package("flask").Flask("bench")
    app.add_url_rule("/items/<number>", view_func=_item)
    return app


def _item(number: str) -> str:
    return number


def _floor(_: Lab) -> Contender:
    return contender(_app())


def _ours(quota: int) -> Any:
    app = _app()
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits=f"{quota}/hour")
    return app


def _extension(_: Lab) -> Contender:
    limiter = part("ratelimit_mw.flask", "RateLimiter")

    def make(quota: int) -> Any:
        app = _app()
        limiter(app, limits=f"{quota}/hour")
        return app

    return held(make)


def _flask_limiter() -> Any:
    """Return a function that makes an app with this limiter."""
    flask_limiter = package("flask_limiter", "flask-limiter")
    who = package("flask_limiter.util", "flask-limiter").get_remote_address

    def make(quota: int) -> Any:
        app = _app()
        flask_limiter.Limiter(
            who, app=app, default_limits=[f"{quota}/hour"], storage_uri="memory://", headers_enabled=True
        )
        return app

    return make


ROWS: Final[Sequence[Row]] = [
    Race(
        name="wsgi",
        what="added to a request to a bare app, headers on / Flask-Limiter's to Flask, headers on",
        ours=limited,
        peer=lambda _: held(_flask_limiter(), LEGACY),
        floor=floor,
        peer_floor=_floor,
        target=0.06,
        calls=500,
    ),
    Race(
        name="wsgi-flask",
        what="the same, both to Flask, where code around it has left the caches",
        ours=lambda _: held(_ours),
        peer=lambda _: held(_flask_limiter(), LEGACY),
        floor=_floor,
        target=0.065,
        calls=500,
    ),
    Race(
        name="flask",
        what="added to a request to Flask by our extension, headers on / Flask-Limiter's, headers on",
        ours=_extension,
        peer=lambda _: held(_flask_limiter(), LEGACY),
        floor=_floor,
        target=0.12,
        calls=500,
    ),
    Race(
        name="wsgi-refused",
        what="a request that is refused before Flask / Flask-Limiter's, within it",
        ours=lambda _: spent(_ours),
        peer=lambda _: spent(_flask_limiter()),
        calls=500,
        admits=False,
    ),
]
