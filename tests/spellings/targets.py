"""Generates request targets: random bytes, and paths of endpoints, changed where servers and routers may differ."""

import random
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from spellings.endpoints import EVERY, FILLED, UUID

_FIELD: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
NUMBERS: Final = [
    *("7", "0", "007", "-5", "+5", "5_0", "-5_0", "--5", "5__0", "_5", "5_", "\u0667", "\u0667_7", "-\u0667", "\uff17"),
    *(
        " 7",
        "7 ",
        "\t7",
        "7\n",
        "\u20037",
        "7\u3000",
        "7\x1f",
        "\x857",
        "\u00b2",
        "\u2460",
        "0x7",
        "7e2",
        "7" * 300,
        "9" * 5000,
    ),
]
FLOATS: Final = [
    *("1.5", "7", "-1.5", "+1.5", "1.", ".5", "1e5", "1E-5", "1_0.5", "1.5_0", "nan", "inf", "-inf", "infinity", "Inf"),
    *(
        "1.2.3",
        "\u0661.\u0665",
        " 1.5",
        "1.5 ",
        "1.5\n",
        "-.5",
        "1e400",
        "0" * 400 + ".5",
        "1." + "0" * 400,
        "\u22121.5",
    ),
]
UUIDS: Final = [
    *(UUID, UUID.upper(), UUID.replace("-", ""), f"{{{UUID}}}", f"urn:uuid:{UUID}", f"uuid:{UUID}", UUID[:-1]),
    *(
        UUID.replace("-", "--"),
        "-" * 300 + UUID,
        f" {UUID}",
        f"{UUID}\n",
        UUID[:8] + UUID[9:],
        f"{{{{{UUID}",
        f"{UUID}0",
    ),
    *("\uff11" + UUID[1:], "1_" + UUID[2:], "+" + UUID[1:], "0x" + UUID[2:]),
]
WORDS: Final = [
    "7",
    "a",
    "a b",
    "\u6771",
    "..",
    ".",
    "",
    "a.b",
    "x;y=1",
    "\n",
    "a\n",
    "\x00",
    "%2e",
    "@",
    ":",
    "\u0130",
    "a" * 3000,
]
DEEP: Final = [
    "a/b",
    "",
    "a",
    "../x",
    "a/../../secret",
    "../secret",
    "a//b",
    "./a",
    "a/edit",
    "../login",
    "/",
    "..",
    "a\n/b",
]
_FILLS: Final = {"int": NUMBERS, "float": FLOATS, "uuid": UUIDS, "path": DEEP}
BYTES: Final = [
    b"\xff",
    b"\xc0",
    b"\x80",
    b"\xc0\xaf",
    b"\xc0\xae",
    b"\xe0\x80\xaf",
    b"\xed\xa0\x80",
    b"\xf8\x80\x80\x80\xae",
    b"\x00",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\x0b",
    b"\x7f",
    b"\xc2\x85",
    b"\xe2\x80\x8b",
    b"\xef\xbc\x8f",
    b"\xe2\x81\x84",
    b"\xcc\x81",
]
PIECES: Final = [
    "/",
    "//",
    "/.",
    "/..",
    "/./",
    "/../",
    "\\",
    "/..\\",
    ";x=1",
    ";",
    "%2f",
    "%2F",
    "%5c",
    "%2e",
    "%2e%2e",
    "%252f",
    "%252e",
    "%00",
    "%0a",
    "%0A/",
    "%0d",
    "%09",
    "%20",
    "+",
    ".",
    "..",
    "#",
    "#x",
    "?",
    "?x",
    "%3f",
    "%23x",
    "%3Fx",
    "&",
    "*",
    "@",
    ":",
    "|",
    "~",
    "%c0%af",
    "%c0%ae",
    "%e0%80%af",
    "%ff",
    "%FF",
    "%u002f",
    "%",
    "%%",
    "%2",
    "x/../",
    "/x/..",
    "%ff/",
]
IN_FRONT: Final = [
    "/",
    "//",
    "///",
    "/./",
    "/../",
    "/x/../",
    "//x/../",
    "/%2e/",
    "//%2e%2e/",
    "%2f",
    "/%2F",
    "\\",
    "/\\",
    "/;/",
    "/api",
    "/api/",
    "//api",
    "/API",
    "/api/api",
    "/x/api",
    "/api/../api",
    "/api//",
    "/api%2f",
    "/%61pi",
    "/health/../",
    "/public/../",
    "/health",
    "/public",
    "/public/..//",
    "//health/..//",
    "/search/../",
    "//search/../",
    "/%ff/",
    "/%0a/",
    "/x/api/",
    "/api/x/../",
]
DOTTED: Final = [
    *("/", "/", "/", ".", "..", "/../", "%2f", "%2F", "%2e", "a", "b", "#", "?"),
    *("%", "%%", "%2", "%0g", "%+1", "%00"),
]
AUTHORITIES: Final = [
    *(
        "http://x",
        "http://x/api",
        "HTTP://x",
        "https://user@x:80",
        "//x",
        "http:",
        "http:/",
        "http:///",
        "x:",
        "ftp://x",
        "http://x//",
    ),
    *(
        "http://[::1]",
        "http://[",
        "x",
        "",
        "*",
        "http://x?",
        "http://x#",
        "http://x;",
        "@x",
        ":80",
        "/http://x",
        "mailto:",
        "1:",
        "%68ttp://x",
    ),
]


def filled(template: str, draw: random.Random | None = None) -> str:
    """Return a path that matches the template; with `draw`, parameters are random and may not match."""

    def fill(found: re.Match[str]) -> str:
        if draw is None or draw.random() < 0.4:
            return FILLED[found[1]] if found[2] or found[1] != "x" else "7"
        return draw.choice(_FILLS.get(found[2] or "", WORDS))

    return _FIELD.sub(fill, template)


def written(path: str) -> bytes:
    """Escape the path as most clients do."""
    return quote(path, safe="/:@!$&'()*+,;=~-._").encode()


Change = Callable[[bytes, random.Random], bytes]


def _at(target: bytes, draw: random.Random) -> int:
    return draw.randint(0, len(target))


def _percent(target: bytes, draw: random.Random) -> bytes:
    """Percent-encode one byte, or all but slashes, once or twice."""
    form = draw.choice(["%%%02x", "%%%02X", "%%25%02x"])
    chosen = draw.randrange(len(target)) if target else 0
    every = draw.random() < 0.1
    return b"".join(
        form.encode() % byte if (every and byte != 0x2F) or at == chosen else bytes([byte])
        for at, byte in enumerate(target)
    )


def _insert_piece(target: bytes, draw: random.Random) -> bytes:
    at = draw.choice([_at(target, draw), len(target), target.rfind(b"/") + 1, target.find(b"/", 1) + 1])
    return target[:at] + draw.choice(PIECES).encode() + target[at:]


def _insert_bytes(target: bytes, draw: random.Random) -> bytes:
    at = draw.choice([_at(target, draw), len(target)])
    inserted = draw.choice(BYTES)
    raw = draw.random() < 0.2
    return target[:at] + (inserted if raw else b"".join(b"%%%02x" % byte for byte in inserted)) + target[at:]


def _in_front(target: bytes, draw: random.Random) -> bytes:
    front = draw.choice(IN_FRONT).encode()
    return front + (target if draw.random() < 0.5 else target.lstrip(b"/"))


def _authority(target: bytes, draw: random.Random) -> bytes:
    front = draw.choice(AUTHORITIES).encode()
    return front + (target if draw.random() < 0.7 else target.lstrip(b"/"))


def _case(target: bytes, draw: random.Random) -> bytes:
    return draw.choice([target.upper(), target.title(), target.swapcase()])


def _cut(target: bytes, draw: random.Random) -> bytes:
    at = _at(target, draw)
    return draw.choice([target[:at] + target[at + 1 :], target.rstrip(b"/"), target.lstrip(b"/")])


def _double(target: bytes, draw: random.Random) -> bytes:
    at = draw.choice([each for each, byte in enumerate(target) if byte == 0x2F] or [0])
    return target[:at] + b"/" * draw.randint(1, 3) + target[at:]


def _other(target: bytes, draw: random.Random) -> bytes:
    """Put the path of another endpoint in front, with or without dot segments after it."""
    other = written(filled(draw.choice(list(EVERY.values()))))
    return other + draw.choice([b"/..", b"/../..", b"", b"/%2e%2e", b"/../../.."]) + target


def _long(target: bytes, draw: random.Random) -> bytes:
    return draw.choice([b"/" * 900, b"/." * 500, b"/x/.." * 200, b"/%2e%2e" * 100]) + target


CHANGES: Final[list[Change]] = [
    *(_percent, _percent, _insert_piece, _insert_piece, _insert_bytes, _in_front, _in_front, _authority),
    *(_case, _cut, _double, _other),
]


def random_targets(seed: str, count: int) -> Iterator[bytes]:
    """Yield `count` random targets. The same seed yields the same targets."""
    draw = random.Random(seed)  # noqa: S311  # not a secret
    templates = list(EVERY.values())
    for _ in range(count):
        if draw.random() < 0.01:
            yield b"/" + draw.randbytes(draw.randint(0, 12))
            continue
        target = written(filled(draw.choice(templates), draw))
        for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3, 4])):
            target = draw.choice(CHANGES)(target, draw)
        if draw.random() < 0.003:
            target = _long(target, draw)
        yield target


def dotted_targets(seed: str, count: int) -> Iterator[bytes]:
    """Yield `count` random targets of slashes, dots and escapes, of which some are incomplete."""
    draw = random.Random(seed)  # noqa: S311  # not a secret
    for _ in range(count):
        yield draw.choice(["/", "/", "/", "a"]).encode() + "".join(draw.choices(DOTTED, k=draw.randint(0, 12))).encode()


def seeds() -> list[bytes]:
    """Return targets with one change each, for four kinds of endpoints, and with each value of a parameter."""
    found = [written(filled(template)) for template in EVERY.values()]
    for name in ("login", "search", "slash", "user"):
        path = written(filled(EVERY[name]))
        found += [front.encode() + path for front in (*IN_FRONT, *AUTHORITIES)]
        found += [path + piece.encode() for piece in PIECES]
        found += [path + b"".join(b"%%%02x" % byte for byte in each) for each in BYTES]
    for template in EVERY.values():
        if field := _FIELD.search(template):
            fills = _FILLS.get(field[2] or "", WORDS)
            found += [written(_FIELD.sub(lambda _, fill=fill: fill, template)) for fill in fills]  # type: ignore[misc]
    return list(dict.fromkeys([*found, *FOUND]))


FOUND: Final = [  # targets that once evaded a rule
    b"//search/../secret",
    b"//search/%2e%2e/x",
    b"/login%FF",
    b"/lo%C0gin",
    b"http://x/login",
    b"/apilogin",
    b"/users/",
    b"/items/-5",
    b"/items/5_0",
    b"/files//edit%0a",
    b"/x/api/login",
    b"//users/",
    b"/users//../posts/9",
    b"/users//./posts/9",
    b"///over/",
    b"/report-5%0a.json",
    b"/users/a#/posts/9",
    b"/over/7#",
    b"/slash/#x",
    b"/users/a%%2fb",
    b"/over/7%2f../../",
]
