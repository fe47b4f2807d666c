"""An app with an invalid limit. Starlette creates its middleware lazily, after the server has started."""

from starlette.applications import Starlette

from ratelimit_mw.asgi import RateLimitMiddleware

app = Starlette()
app.add_middleware(RateLimitMiddleware, limits="100/minute", rules=[{"path": "/a", "limits": ["5/minute", "10/mfoo"]}])
