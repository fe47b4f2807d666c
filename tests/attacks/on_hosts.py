"""Attacks on an app below two hosts: other spellings of a host."""

from attacks.attack import Attack, Seen, Target, statuses

SPELLED = ("b.test", "b.test", "b.test", "b.test", "B.test", "b.test:80", "B.TEST", "b.test:1:2")
BEFORE_1_0 = (200, 200, 200, 429, 404, 429, 404, 429)  # Starlette minds the case, and cuts a host at the first colon


def spells_the_host(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", "/page", ("Host", host)) for host in SPELLED]))


ON_HOSTS = [
    Attack(
        "a host in other letters, and with ports",
        "our own second release",
        "8 requests to b.test, B.test, b.test:1:2 and the like, an app that is below a.test, too",
        "3 requests per address and host",
        spells_the_host,
        (200,) * 3 + (429,) * 4 + (404,),
        most=3,
    ),
]
