"""The endpoints of the app in each framework, and settings with rules for them."""

from typing import Any, Final

UUID: Final = "123e4567-e89b-12d3-a456-426614174000"
MANY: Final = "1000000000/hour"  # a limit that no run of these tests reaches

TEMPLATES: Final = {  # one rule for each endpoint, of the same name
    "root": "/",
    "login": "/login",
    "secret": "/secret",
    "list": "/admin/users/list",
    "slash": "/slash/",
    "cafe": "/caf\u00e9",
    "user": "/users/{id}",
    "post": "/users/{id}/posts/{post}",
    "item": "/items/{n:int}",
    "price": "/prices/{x:float}",
    "thing": "/things/{u:uuid}",
    "report": "/report-{n:int}.json",
    "row": "/rows/r-{n:int}/cell",
    "search": "/search/{q:path}",
    "edit": "/files/{q:path}/edit",
    "inside": "/sub/inside",
    "below": "/sub/items/{n:int}",
    "seven": "/over/7",
    "over": "/over/{x}",
}
EXEMPT: Final = {"health": "/health", "public": "/public/{p:path}"}
WITHOUT_RULE: Final = {"free": "/free", "open": "/open/{x}"}  # the default limits apply to these
EVERY: Final = {**TEMPLATES, **EXEMPT, **WITHOUT_RULE}
FILLED: Final = {"id": "7", "n": "7", "x": "1.5", "u": UUID, "q": "a/b", "p": "a/b", "post": "9"}

SETTINGS: Final[dict[str, Any]] = {
    "limits": MANY,
    "rules": [{"name": name, "path": path, "limits": MANY} for name, path in TEMPLATES.items()],
    "exempt": list(EXEMPT.values()),
    "key": "all",
}


def escaped(endpoint: str, charged: frozenset[str]) -> bool:
    """Return whether a request that reached the endpoint was not charged by the endpoint's limit."""
    if endpoint in EXEMPT:
        return False
    return (endpoint if endpoint in TEMPLATES else "default") not in charged
