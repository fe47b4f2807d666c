"""The app that is attacked, behind our middleware: as few settings as a user would write."""

import os
from typing import Any

from attacked_routes import make
from ratelimit_mw import MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware

app = make()


def cost_of(request: Any) -> int:
    """What the client says it costs, as careless apps ask."""
    return int(request.headers["x-cost"])


app.add_middleware(
    RateLimitMiddleware,
    limits="5/hour",
    rules=[
        {"path": "/login", "methods": ["POST"], "limits": "3/hour"},
        {"path": "/items/{id}", "limits": "3/hour"},
        {"path": "/keyed", "limits": "3/hour", "key": "header:X-Api-Key"},
        {"path": "/spend", "limits": [{"limit": "10/hour", "cost": cost_of}]},
    ],
    exempt=["/health"],
    trusted_proxies=["127.0.0.1"] if os.environ["STAND"] == "behind" else [],
    store=os.environ.get("STORE") or MemoryStore(max_keys=1000),
    store_timeout=5,  # on a busy machine
    on_store_error="deny",
)
