"""An app with slowapi and FastAPI: default limits, SlowAPIMiddleware, and a decorator on each route.

Behind the proxy, uvicorn finds the client's address, as slowapi recommends.
"""

from typing import Any

from fastapi import Request
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address

from attacked_routes import health, item, keyed, login, make, spend

limiter = Limiter(key_func=get_remote_address, default_limits=["5/hour"])


def api_key(request: Request) -> str:
    """Return the API key, which is the bucket's key under /keyed."""
    return request.headers["x-api-key"]


def cost(request: Request) -> int:
    """Return the cost that the client's header specifies."""
    return int(request.headers["x-cost"])


limited: dict[Any, Any] = {
    login: limiter.limit("3/hour"),
    item: limiter.limit("3/hour"),
    keyed: limiter.limit("3/hour", key_func=api_key),
    spend: limiter.limit("10/hour", cost=cost),
    health: limiter.exempt,
}
app = make(limited)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]  # its own handler
app.add_middleware(SlowAPIMiddleware)
