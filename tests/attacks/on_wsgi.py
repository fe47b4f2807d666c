"""Attacks on an app under uWSGI, which keeps header names with underscores, and joins lines as proxies do."""

from attacks.attack import Attack, Seen, Target, statuses
from attacks.on_identity import THREE, forged


def underscored(target: Target) -> Seen:
    """Simulates Caddy, which passes the client's `X_Forwarded_For` on behind its own `X-Forwarded-For`."""
    own = ("X-Forwarded-For", target.client())
    lines = [(own, ("X_Forwarded_For", forged(each))) for each in range(6)]
    return Seen(statuses([target.ask_behind("GET", "/", *each) for each in lines]))


ON_WSGI = [
    Attack(
        "X_Forwarded_For beside the proxy's X-Forwarded-For",
        "our own second release",
        "6 requests through a proxy that passes header names with underscores on",
        "3 requests per client",
        underscored,
        THREE,
        most=3,
    ),
]
