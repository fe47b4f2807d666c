"""A WSGI app with a window that is short enough to wait for its end."""

from flask import Flask

from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)


@app.route("/", methods=["GET", "POST"])
def hello() -> str:
    return "hello"


app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]  # Flask's documented way to add middleware
    app.wsgi_app, limits="2 per 3 seconds using fixed_window"
)
