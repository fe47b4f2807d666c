"""Rows of the time that a limit adds to requests as in production: many clients, a proxy, and several rules.

Most rows have no peer, and show microseconds.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.lab import Lab, package
from benchmarks.ours import asgi
from benchmarks.ours.asgi import App, Scope, bare
from benchmarks.ours.production import (
    EASIEST,
    HARDEST,
    MANY,
    QUOTA,
    RULES,
    Scene,
    floor,
    in_turn,
    limited,
    path,
    wsgi_floor,
    wsgi_limited,
)
from benchmarks.runner import Contender, Race, Row

_SCENES: Final = [
    Scene(clients, proxy=proxy, rules=rules)
    for clients in (1, 1000, MANY)
    for proxy in (False, True)
    for rules in (0, RULES)
]
_CALLS: Final = 2000


def _redis(lab: Lab) -> str:
    return lab.redis_url()


def _asgi_ratelimit(scene: Scene) -> App:
    """Return an app with asgi-ratelimit and the same rules.

    Its `client_ip` does not read X-Forwarded-For, so users have to write a function like `who`.
    """
    ratelimit = package("ratelimit", "asgi-ratelimit")
    backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend()

    async def who(scope: Scope) -> tuple[str, str]:
        if scene.proxy:
            for name, value in scope["headers"]:
                if name == b"x-forwarded-for":
                    return value.decode("latin-1").rpartition(",")[2].strip(), "default"
        return scope["client"][0], "default"

    rules = {
        rf"^{path(n).rpartition('/')[0]}/[^/]+$": [ratelimit.Rule(hour=QUOTA, zone=f"r{n}")] for n in range(scene.rules)
    }
    rules["^/"] = [ratelimit.Rule(hour=QUOTA, zone="default")]
    app: App = ratelimit.RateLimitMiddleware(bare, who, backend, rules)
    return app


def _peer(lab: Lab) -> Contender:
    return in_turn(lab, _asgi_ratelimit(HARDEST), HARDEST)


ROWS: Final[Sequence[Row]] = [
    Race(
        name="production-over-asgi-ratelimit",
        what=f"added to a request: {HARDEST.what}, headers on / asgi-ratelimit's with the same, no headers",
        ours=limited(HARDEST),
        peer=_peer,
        floor=floor(HARDEST),
        target=0.8,
        calls=_CALLS,
    ),
    Race(
        name="production-no-headers-over-asgi-ratelimit",
        what=f"added to a request: {HARDEST.what}, no headers / asgi-ratelimit's with the same, no headers",
        ours=limited(HARDEST, headers="none"),
        peer=_peer,
        floor=floor(HARDEST),
        calls=_CALLS,
    ),
    Race(
        name="production-one",
        what=f"added to a request: 1 client, behind a proxy, {RULES} rules / without proxy and rules",
        ours=limited(EASIEST),
        peer=asgi.limited,
        floor=floor(EASIEST),
        peer_floor=asgi.floor,
        target=2.0,
        calls=_CALLS,
    ),
    *[
        Race(
            name=f"production-{kind}-{store}-{scene.name}",
            what=f"added to a request, {kind.upper()}, {store}: {scene.what}",
            ours=ours(scene, _redis) if store == "redis" else ours(scene),
            floor=bottom(scene),
            calls=_CALLS,
        )
        for kind, ours, bottom in (("asgi", limited, floor), ("wsgi", wsgi_limited, wsgi_floor))
        for store in ("memory", "redis")
        for scene in _SCENES
    ],
]
