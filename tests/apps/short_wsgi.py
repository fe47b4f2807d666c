"""An app with a limit that a client can wait for."""

from flask import Flask

from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)


@app.route("/", methods=["GET", "POST"])
def hello() -> str:
    return "hello"


app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]  # Flask's documented way to add middleware
    app.wsgi_app, limits="2 per 3 seconds using fixed_window"
)
