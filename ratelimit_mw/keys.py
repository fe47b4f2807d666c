"""Whose bucket: `ip`, `user`, `route`, `all`, `header:X-Api-Key`, `cookie:sid`, `call:package.module:function`, or a
callable.

`|` takes the first that is there; `+` takes all together, and binds tighter.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final

from ratelimit_mw.client_ip import client_address
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.identity import encode
from ratelimit_mw.limit import whole
from ratelimit_mw.request import Request

Call = Callable[[Request], Awaitable[Any] | Any]
Answers = Mapping[Call, str | None]  # what the callables of a request gave
KeySpec = str | Call

_Read = Callable[[Request, str, Answers], str | None]  # (request, route, answers)
_Part = tuple[str, _Read]  # kind, how to read it

_NARROWEST, _WIDEST = 128, 32  # bits of an IPv6 network
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_WORDS: Final = "ip, ip/48, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +"


class Key:
    """A key, compiled. `calls` are the callables whose answers `identity` needs."""

    __slots__ = ("_alternatives", "calls", "is_all", "text")

    def __init__(self, spec: KeySpec, ipv6_prefix: int) -> None:
        self.calls: list[Call] = []
        if callable(spec):
            self.text = (
                f"call:{getattr(spec, '__module__', '')}:{getattr(spec, '__qualname__', type(spec).__qualname__)}"
            )
            self._alternatives = [[self._call(self.text, spec)]]
        elif isinstance(spec, str):
            self.text = " | ".join("+".join(part.split()) for part in spec.split("|"))
            self._alternatives = [
                [self._part(word.strip(), ipv6_prefix) for word in alternative.split("+")]
                for alternative in spec.split("|")
            ]
        else:
            raise ConfigError(f"found {spec!r}, allowed is a callable, or text made of {_WORDS}")
        self.is_all = spec == "all"

    def identity(self, request: Request, route: str, answers: Answers) -> str | None:
        """The encoded identity of the first alternative that is there, or None."""
        for alternative in self._alternatives:
            parts = []
            for kind, read in alternative:
                value = read(request, route, answers)
                if not value:
                    break
                parts.append((kind, value))
            else:
                return encode(parts)
        return None

    def _part(self, word: str, ipv6_prefix: int) -> _Part:
        kind, _, name = word.partition(":")
        if word == "ip" or kind.startswith("ip/"):
            prefix = _prefix(kind[3:]) if kind != "ip" else ipv6_prefix
            return "ip", lambda request, _, __: client_address(request.client, prefix)
        if word in _SIMPLE:
            return word, _SIMPLE[word]
        if kind == "call" and name:
            return self._call(word, _imported(name))
        if kind in ("header", "cookie") and _NAME.fullmatch(name):
            if kind == "cookie":
                return word, lambda request, _, __: request.cookies.get(name)
            name = name.lower()
            return f"header:{name}", lambda request, _, __: request.headers.get(name)
        raise ConfigError(f"found {word!r}, allowed is {_WORDS}")

    def _call(self, kind: str, function: Call) -> _Part:
        self.calls.append(function)
        return re.sub(r"[^A-Za-z0-9_.:]", "-", kind), lambda _, __, answers: answers[function]


_SIMPLE: Final[dict[str, _Read]] = {
    "user": lambda request, _, __: request.user,
    "route": lambda _, route, __: route,
    "all": lambda _, __, ___: "all",
}


def _prefix(text: str) -> int:
    if not text.isdecimal() or not _WIDEST <= int(text) <= _NARROWEST:
        raise ConfigError(f"found 'ip/{text}', allowed is ip/{_WIDEST} to ip/{_NARROWEST}, the bits of an IPv6 network")
    return int(text)


def check_ipv6_prefix(value: object) -> int:
    """`value` as the number of bits by which IPv6 clients are counted. Raises `ConfigError`."""
    if whole("ipv6_prefix", value, _WIDEST) > _NARROWEST:
        raise ConfigError(f"ipv6_prefix: found {value!r}, allowed is a whole number from {_WIDEST} to {_NARROWEST}")
    return int(str(value))


def _imported(name: str) -> Call:
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"found 'call:{name}', allowed is call:PACKAGE.MODULE:FUNCTION of a function that can be imported: {error}"
        ) from error
    if not callable(found):
        raise ConfigError(f"found 'call:{name}', which is no function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # its signature is the user's word
