"""gunicorn examples.saas_plans:app"""

import os
from typing import Any

from flask import Flask

from ratelimit_mw.flask import RateLimiter

PLANS = {"none": 0, "free": 5, "pro": 1_000}  # calls a month
CUSTOMERS: dict[str, dict[str, Any]] = {  # in practice a table of the database, which a cache keeps for a minute
    "key-of-ann": {"plan": "free", "day": 31, "zone": "Europe/Berlin"},
    "key-of-bob": {"plan": "pro", "day": 1, "zone": "America/New_York"},
}
UNKNOWN: dict[str, Any] = {"plan": "none", "day": 1, "zone": "UTC"}


def customer(request: Any) -> Any:
    key = request.header("x-api-key")
    return key if key in CUSTOMERS else None


def limits(request: Any) -> list[dict[str, Any]]:
    one = CUSTOMERS.get(customer(request), UNKNOWN)
    month = f"{PLANS[one['plan']]}/month using calendar_window in {one['zone']} from {one['day']}"
    return [{"limit": month, "name": "calls"}, {"limit": "20/second using gcra", "name": "speed"}]


app = Flask(__name__)
app.config["RATELIMIT_MW"] = {
    "limits": limits,
    "key": customer,
    "missing_key": "deny",  # 403 for unknown customers
    "on_change": "used",  # a new plan, or a new billing day, starts with what was used
    "exempt": ["/plan/{name}"],
    "usage_path": "/usage",
    "store": os.environ.get("STORE", "memory://"),
}
RateLimiter(app)


@app.get("/reports")
def reports() -> dict[str, Any]:
    return {"reports": []}


@app.post("/plan/<name>")  # in practice what the payment provider calls
def change_plan(name: str) -> dict[str, str]:
    CUSTOMERS["key-of-ann"]["plan"] = name
    return {"plan": name}
