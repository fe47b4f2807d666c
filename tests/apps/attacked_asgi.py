"""The app that is attacked, behind this package's middleware, with as few settings as a user would write."""

import os
from typing import Any

from fastapi import Depends, HTTPException

from attacked_routes import make
from ratelimit_mw import MemoryStore, RateLimited
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware

app = make()
WAYS = ["POST", "OPTIONS"]  # an endpoint that answers preflights itself


async def answer() -> str:
    """Return the response of the endpoints below."""
    return "done"


async def checks_a_password() -> None:
    """Work that only the outer limit bounds."""


async def refused_after_the_check(_: Any, __: Any) -> None:
    """Answer refusals by the inner limit, which an attacker can distinguish from those by the outer limit."""
    raise HTTPException(403)


app.add_exception_handler(RateLimited, refused_after_the_check)
app.add_api_route("/any", answer, methods=WAYS)
app.add_api_route("/door", answer, methods=WAYS, dependencies=[Depends(RateLimit("3/hour"))])
app.add_api_route("/guarded", answer, dependencies=[Depends(checks_a_password), Depends(RateLimit("2/hour"))])


def cost_of(request: Any) -> int:
    """Return the cost that the client claims, as careless apps do."""
    return int(request.headers["x-cost"])


app.add_middleware(
    RateLimitMiddleware,
    limits="5/hour",
    rules=[
        {"path": "/login", "methods": ["POST"], "limits": "3/hour"},
        {"path": "/items/{id}", "limits": "3/hour"},
        {"path": "/keyed", "limits": "3/hour", "key": "header:X-Api-Key"},
        {"path": "/any", "limits": "3/hour"},
        {"path": "/door", "limits": []},
        {"path": "/spend", "limits": [{"limit": "10/hour", "cost": cost_of}]},
    ],
    exempt=["/health"],
    trusted_proxies=["127.0.0.1"] if os.environ["STAND"] == "behind" else [],
    store=os.environ.get("STORE") or MemoryStore(max_keys=1000),
    store_timeout=5,  # on a busy machine
    on_store_error="deny",
)
