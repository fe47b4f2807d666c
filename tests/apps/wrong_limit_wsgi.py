"""A WSGI app with an invalid limit. Importing it raises an error."""

from wsgiref.simple_server import demo_app

from ratelimit_mw.wsgi import RateLimitMiddleware

app = RateLimitMiddleware(demo_app, limits="100/minute", rules=[{"path": "/a", "limits": ["5/minute", "10/mfoo"]}])
