"""An app whose limit is wrong, added as Starlette adds middleware: lazily, when the server has already started."""

from starlette.applications import Starlette

from ratelimit_mw.asgi import RateLimitMiddleware

app = Starlette()
app.add_middleware(RateLimitMiddleware, limits="100/minute", rules=[{"path": "/a", "limits": ["5/minute", "10/mfoo"]}])
