"""gunicorn examples.flask_app:app"""

import os

from flask import Flask, request

from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)


@app.get("/")
def home() -> dict[str, int]:
    return {"left": request.environ["ratelimit_mw"].remaining}


@app.post("/login")
def login() -> dict[str, bool]:
    return {"welcome": True}


app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]  # Flask's documented way to add middleware
    app.wsgi_app,
    limits="5 per 3 seconds; 1000/hour",
    rules=[{"path": "/login", "methods": ["POST"], "limits": "2 per 3 seconds", "key": "ip"}],
    store=os.environ.get("STORE", "memory://"),
)
