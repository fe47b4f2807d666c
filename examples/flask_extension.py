"""gunicorn examples.flask_extension:app"""

import os

from flask import Blueprint, Flask, g

from ratelimit_mw.flask import RateLimiter, exempt, limit

api = Blueprint("api", __name__, url_prefix="/api")
limit("2 per 3 seconds burst 2 using token_bucket", name="api")(api)  # one bucket for all of its views


@api.get("/reports/<int:report>")
def report(report: int) -> dict[str, int]:
    return {"report": report}


app = Flask(__name__)
app.config["RATELIMIT_MW"] = {"limits": "5 per 3 seconds; 1000/hour", "store": os.environ.get("STORE", "memory://")}
limiter = RateLimiter(app)
app.register_blueprint(api)


@app.get("/")
def home() -> dict[str, int]:
    return {"left": g.ratelimit.remaining}


@app.post("/login")
@limit("2 per 3 seconds", key="ip")
def login() -> dict[str, bool]:
    return {"welcome": True}


@app.get("/health")
@exempt
def health() -> dict[str, bool]:
    return {"well": True}
