"""Whose bucket.

`ip`, `user`, `route`, `all`, `header:X-Api-Key`, `cookie:sid`, `call:package.module:function`, or a callable.

`|` takes the first that is there; `+` takes all together, and binds tighter.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, Protocol

from ratelimit_mw.addresses import LONGEST
from ratelimit_mw.calls import Answers, Call, call_from, named_call, text_answer, went_wrong
from ratelimit_mw.client_ip import check_no_underscore, client_address
from ratelimit_mw.errors import ConfigError, located
from ratelimit_mw.identity import encode_part

KeySpec = str | Call

_Read = Callable[["Caller", str, Answers], str | None]  # (request, route, answers) -> the encoded part
_Part = tuple[str, _Read]  # kind, how to read it

ANY_PREFIX: Final = 64  # where only the form of a key is looked at
_NARROWEST, _WIDEST = 128, 32  # bits of an IPv6 network
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_WORDS: Final = "ip, ip/48, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +"


class Caller(Protocol):
    """What a key reads of a request."""

    @property
    def client(self) -> str | None: ...  # noqa: D102  # see Request
    @property
    def user(self) -> str | None: ...  # noqa: D102
    def header(self, name: str) -> str | None: ...  # noqa: D102
    @property
    def cookies(self) -> Mapping[str, str]: ...  # noqa: D102


class Key:
    """A key, compiled: `identity(request, route, answers)` is its first alternative that is there, encoded, or None.

    `calls` are the callables whose answers it needs. `is_shared`: all clients have the same identity under it.
    `prefix`: how many bits of an IPv6 address it reads.
    """

    __slots__ = ("_kinds", "calls", "identity", "is_all", "is_shared", "prefix", "text")

    def __init__(self, spec: KeySpec, ipv6_prefix: int) -> None:
        self.calls: list[Call] = []
        self.prefix = 0
        if callable(spec):
            call_from(spec)
            self.text = (
                f"call:{getattr(spec, '__module__', '')}:{getattr(spec, '__qualname__', type(spec).__qualname__)}"
            )
            alternatives = [[self._call(self.text, spec)]]
        elif isinstance(spec, str):
            words = [[word.strip() for word in alternative.split("+")] for alternative in spec.split("|")]
            self.text = " | ".join("+".join(alternative) for alternative in words)
            alternatives = [[self._part(word, ipv6_prefix) for word in alternative] for alternative in words]
        else:
            raise ConfigError(f"found {spec!r}, allowed is a callable, or text made of {_WORDS}")
        self.identity: Final = _first_of([_together([read for _, read in parts]) for parts in alternatives])
        self._kinds = {tuple(kind for kind, _ in parts) for parts in alternatives}
        self.is_all = self.text == "all"
        self.is_shared: Final = all(kind in ("all", "route") for kinds in self._kinds for kind in kinds)

    @property
    def memorable(self) -> bool:
        """Whether it reads nothing but user, client and route: short, and the same again and again."""
        return all(kind in ("ip", "user", "route", "all") for kinds in self._kinds for kind in kinds)

    @property
    def reads_user(self) -> bool:
        """Whether it may ask who is logged in."""
        return any("user" in kinds for kinds in self._kinds)

    @property
    def needs_user(self) -> bool:
        """Whether it is there for nobody but who is logged in."""
        return all("user" in kinds for kinds in self._kinds)

    @property
    def forgeable(self) -> bool:
        """Whether it is made of nothing but what a client writes, who can then have as many identities as it likes."""
        return all(kind.startswith(("header:", "cookie:")) for kinds in self._kinds for kind in kinds)

    @property
    def needs_header(self) -> bool:
        """Whether each of its alternatives reads a header or a cookie, so that a request without it has no identity."""
        return all(any(kind.startswith(("header:", "cookie:")) for kind in kinds) for kinds in self._kinds)

    def failed(self, answers: Answers) -> bool:
        """Whether one of its callables raised or returned nonsense."""
        return any(went_wrong(call, answers) for call in self.calls)

    def meets(self, other: "Key") -> bool:
        """Whether a request can have the same identity under both: they have an alternative of the same kinds."""
        return not self._kinds.isdisjoint(other._kinds)  # noqa: SLF001  # one of us

    def _part(self, word: str, ipv6_prefix: int) -> _Part:
        kind, _, name = word.partition(":")
        if word == "ip" or kind.startswith("ip/"):
            prefix = _prefix(kind[3:]) if kind != "ip" else ipv6_prefix
            self.prefix = max(prefix, self.prefix)
            return "ip", _ip(prefix)
        if word in _SIMPLE:
            return word, _SIMPLE[word]
        if named_call(word):
            return self._call(word, call_from(word))
        if kind in ("header", "cookie") and _NAME.fullmatch(name):
            if kind == "cookie":
                return word, lambda request, _, __: _part(word, request.cookies.get(name))
            check_no_underscore(name)
            name = name.lower()
            kind = f"header:{name}"
            return kind, lambda request, _, __: _part(kind, request.header(name))
        raise ConfigError(f"found {word!r}, allowed is {_WORDS}")

    def _call(self, kind: str, function: Call) -> _Part:
        self.calls.append(function)
        kind = re.sub(r"[^A-Za-z0-9_.:]", "-", kind)
        return kind, lambda _, __, answers: _part(kind, text_answer(function, answers))


def _first_of(alternatives: Sequence[_Read]) -> _Read:
    def identity(request: Caller, route: str, answers: Answers) -> str | None:
        for read in alternatives:
            found = read(request, route, answers)
            if found is not None:
                return found
        return None

    return identity


def _together(reads: Sequence[_Read]) -> _Read:
    if len(reads) == 1:
        return reads[0]

    def joined(request: Caller, route: str, answers: Answers) -> str | None:
        parts = [read(request, route, answers) for read in reads]
        return "+".join([part for part in parts if part is not None]) if None not in parts else None

    return joined


def _part(kind: str, value: str | None) -> str | None:
    return encode_part(kind, value) if value else None


@cache
def _ip(prefix: int) -> _Read:
    """How the address is read: one for all keys with this prefix, which remember the same."""

    @lru_cache(maxsize=4096)
    def part(host: str) -> str | None:
        return _part("ip", client_address(host, prefix))

    def read(request: Caller, _: str, __: Answers) -> str | None:
        host = request.client
        return part(host) if host and len(host) <= LONGEST else None  # nothing longer is remembered

    return read


_SIMPLE: Final[dict[str, _Read]] = {
    "user": lambda request, _, __: None if (user := request.user) is None else _part("user", user),
    "route": lambda _, route, __: _part("route", route),
    "all": lambda _, __, ___: "all=all",
}


def _prefix(text: str) -> int:
    if not text.isdecimal() or not _WIDEST <= int(text) <= _NARROWEST:
        raise ConfigError(f"found 'ip/{text}', allowed is ip/{_WIDEST} to ip/{_NARROWEST}, the bits of an IPv6 network")
    return int(text)


def check_ipv6_prefix(value: object) -> int:
    """`value` as the number of bits by which IPv6 clients are counted. Raises `ConfigError`."""
    if type(value) is not int or not _WIDEST <= value <= _NARROWEST:
        raise ConfigError(f"ipv6_prefix: found {value!r}, allowed is a whole number from {_WIDEST} to {_NARROWEST}")
    return value


def check_key(value: Any, place: str = "key", ipv6_prefix: int = ANY_PREFIX) -> None:
    """Raises `ConfigError` unless `value` is a key."""
    with located(place):
        Key(value, ipv6_prefix)


def sound_key(value: Any) -> KeySpec:
    """The key, or one that stands in for a wrong one, which is told of once, where it stands."""
    try:
        check_key(value)
    except ConfigError:
        return "all"
    return value  # type: ignore[no-any-return]  # it is one
