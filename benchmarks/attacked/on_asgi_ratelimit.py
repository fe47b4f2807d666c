"""An app with asgi-ratelimit: its rules are regular expressions, and it has no costs.

Behind the proxy it finds the client with its own `client_ip`, which reads X-Real-IP.
"""

import os

from ratelimit import RateLimitMiddleware, Rule
from ratelimit.auths.ip import client_ip
from ratelimit.backends.simple import MemoryBackend
from ratelimit.types import Scope

from attacked_routes import make

BEHIND = os.environ["STAND"] == "behind"


async def who(scope: Scope) -> tuple[str, str]:
    """Return the API key under /keyed, the client's address elsewhere."""
    if scope["path"] == "/keyed":
        return dict(scope["headers"])[b"x-api-key"].decode("latin-1"), "default"
    if BEHIND:
        return await client_ip(scope)
    return scope["client"][0], "default"


app = RateLimitMiddleware(
    make(),
    who,
    MemoryBackend(),
    {
        r"^/login": [Rule(hour=3, method="post"), Rule(hour=5)],
        r"^/items": [Rule(hour=3)],
        r"^/keyed": [Rule(hour=3)],
        r"^/health": [Rule()],
        r"^/": [Rule(hour=5)],
    },
)
