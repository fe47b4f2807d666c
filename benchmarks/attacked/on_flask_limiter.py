"""An app with flask-limiter under gunicorn: default limits, and a decorator on each route.

Behind the proxy, Werkzeug's ProxyFix finds the client's address, as flask-limiter recommends.
"""

import logging
import os

from flask import Flask, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from werkzeug.middleware.proxy_fix import ProxyFix

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)

app = Flask(__name__)
if os.environ["STAND"] == "behind":
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1)  # type: ignore[method-assign]  # as Flask documents it
limiter = Limiter(get_remote_address, app=app, default_limits=["5/hour"], storage_uri="memory://")


@app.post("/login")
@limiter.limit("3/hour")
def login() -> str:
    """Log in."""
    return "in"


@app.get("/items/<name>")
@limiter.limit("3/hour")
def item(name: str) -> str:
    """Show an item."""
    return f"item {len(name)}"


@app.get("/keyed")
@limiter.limit("3/hour", key_func=lambda: request.headers["X-Api-Key"])
def keyed() -> str:
    """Require an API key."""
    return "yours"


@app.post("/spend")
@limiter.limit("10/hour", cost=lambda: int(request.headers["X-Cost"]))
def spend() -> str:
    """Cost as many units as the client's header specifies."""
    return "spent"


@app.get("/page/")
def page() -> str:
    """Show a page whose path ends with a slash."""
    return "a page"


@app.get("/1/2/3/4/5/6/7/8/9/10/page")
def deep() -> str:
    """Show a page whose path has many segments."""
    return "a page"


@app.get("/health")
@limiter.exempt
def health() -> str:
    """Answer without a limit."""
    return "well"
