"""Attacks on a Django project: other paths of a view, by language, format suffix and script name."""

from attacks.attack import Attack, Play, Seen, Target, statuses

TONGUES = ("en", "de", "fr", "es", "it", "nl", "pt-br", "zh-hans")
THREE = (200,) * 3 + (429,) * 5


def visits(*paths: str) -> Play:
    """Request each path once, from one address."""

    def play(target: Target) -> Seen:
        me = target.address()
        return Seen(statuses([target.ask(me, "GET", path) for path in paths]))

    return play


ON_DJANGO = [
    Attack(
        "a language for each request",
        "our own second release",
        f"8 requests to /en/page, /de/page and the like, in {len(TONGUES)} of Django's languages",
        "3 requests per address",
        visits(*(f"/{tongue}/page" for tongue in TONGUES)),
        THREE,
        most=3,
    ),
    Attack(
        "a format suffix for each request",
        "our own second release",
        "8 requests to /items/1, /items/1.json, /items/2.xml/ and the like, under a rule for /items/{id:int}",
        "3 requests per address",
        visits("/items/1", "/items/1.json", "/items/2.xml/", *(f"/items/{each}.{each}" for each in range(5))),
        THREE,
        most=3,
    ),
    Attack(
        "with and without the script name",
        "our own second release",
        "8 requests to /login and /app/login by turns, with FORCE_SCRIPT_NAME, under a rule for /login",
        "3 requests per address",
        visits(*("/login", "/app/login") * 4),
        THREE,
        most=3,
    ),
]
