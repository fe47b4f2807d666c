"""What ASGI middleware adds to a request, called as a server calls it."""

from collections.abc import Sequence
from typing import Final

from benchmarks.lab import Lab, package
from benchmarks.ours.asgi import Scope, bare, contender, floor, limited
from benchmarks.runner import Contender, Race, Row

_PLENTY: Final = 10**9


def _asgi_ratelimit(lab: Lab) -> Contender:
    ratelimit = package("ratelimit", "asgi-ratelimit")
    backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend()

    async def who(scope: Scope) -> tuple[str, str]:  # its own `client_ip` parses the address on every request
        return scope["client"][0], "default"

    return contender(lab, ratelimit.RateLimitMiddleware(bare, who, backend, {r"^/": [ratelimit.Rule(day=_PLENTY)]}))


ROWS: Final[Sequence[Row]] = [
    Race(
        name="asgi",
        what="added to a request, headers on / asgi-ratelimit, no headers",
        ours=limited,
        peer=_asgi_ratelimit,
        floor=floor,
        target=1.0,
    ),
]
