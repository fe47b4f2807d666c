"""Keys: which part of a request selects its bucket.

`ip`, `ip/24/56`, `user`, `route`, `all`, `header:X-Api-Key`, `cookie:sid`, `call:package.module:function`, or a
callable.

`|` selects the first part that is present. `+` combines parts, and binds tighter.
"""

import re
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from typing import Any, Final, Protocol

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.identity import encode_part
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.core.validation import closest_match, did_you_mean
from ratelimit_mw.http.callables import (
    FAILED,
    CallResults,
    RequestCallable,
    is_callable_name,
    key_callable_failed,
    key_result,
    resolve_callable,
)
from ratelimit_mw.http.client_ip import check_no_underscore, client_address
from ratelimit_mw.http.cookies import Cookies
from ratelimit_mw.http.networks import is_ipv4

_OneKey = str | RequestCallable
KeySpec = _OneKey | Sequence[_OneKey]  # of a sequence, the first that is present

_PartReader = Callable[["KeyContext", str, CallResults], str | None]  # (request, route, results) -> the encoded part
_Part = tuple[str, _PartReader]  # kind, reader

ANY_PREFIX: Final = 64  # for keys that are checked or compared, but not read
_CERTAIN: Final = {"ip", "route", "all"}  # parts that no client can leave out
_MAX_PREFIX, _MIN_PREFIX = 128, 32  # bits of an IPv6 network
_MAX_IPV4_PREFIX, _MIN_IPV4_PREFIX = 32, 8  # bits of an IPv4 network; alone, 32 is that of an IPv6 network
_PREFIX: Final = re.compile("(?:([0-9]{1,2})/)?([0-9]{1,3})")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HEADER: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+|authorization", re.IGNORECASE)
_PREFIXES: Final = ("header", "cookie", "call")
_OR: Final = re.compile(r"\s*,\s*|_or_|\s+or\s+")
_AND: Final = re.compile(r"\s*[,&]\s*|_and_|\s+and\s+")
_FIELD: Final = re.compile(r"(?:post|get|form|json|body|query|param|params|field):(.+)", re.IGNORECASE)
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+:[A-Za-z_]\w*")  # of a module, without `call:`
_ADDRESS_NAMES: Final = ("remote_addr", "remote_address", "client_ip", "ip_address", "address", "client", "host")
_SYNTAX: Final = (
    "ip, ip/24/56, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +"
)


class KeyContext(Protocol):
    """The parts of a request that a key can read."""

    @property
    def client(self) -> str | None: ...  # noqa: D102  # see Request
    @property
    def user(self) -> str | None: ...  # noqa: D102
    def header(self, name: str) -> str | None: ...  # noqa: D102
    @property
    def cookies(self) -> Cookies: ...  # noqa: D102
    def header_lines(self, name: str) -> Sequence[str]: ...  # noqa: D102


class Key:
    """A compiled key. `identity(request, route, results)` returns the encoded identity, or None if it is missing.

    `callables`: the callables whose results it needs. `headers`, `cookies`: the names of those that it reads.
    `is_shared`: all clients have the same identity. `address_prefix`: the bits of an IPv6 address that it reads, if
    for a request with an address and without a user it reads only the address, and all of an IPv4 address; else
    None. `place`: its text, or for a callable the name, with file and line of a lambda. `no_effect`: the parts
    behind one that practically every request has, that one, and a text in which they come first; None without such
    parts.
    """

    __slots__ = (
        "_kinds",
        "_reachable",
        "address_prefix",
        "callables",
        "cookies",
        "headers",
        "identity",
        "is_all",
        "is_shared",
        "no_effect",
        "place",
        "text",
    )

    def __init__(self, spec: KeySpec, ipv6_prefix: int) -> None:
        self.callables: list[RequestCallable] = []
        texts: list[str] = []
        alternatives: list[list[_Part]] = []
        for one in spec if isinstance(spec, (list, tuple)) and spec else [spec]:
            if callable(one):
                resolve_callable(one)
                text = f"call:{getattr(one, '__module__', '')}:{getattr(one, '__qualname__', type(one).__qualname__)}"
                texts.append(text)
                alternatives.append([self._call(text, one)])
            elif isinstance(one, str):
                for alternative in one.split("|"):
                    part_names = [part_name.strip() for part_name in alternative.split("+")]
                    texts.append("+".join(part_names))
                    alternatives.append([self._compile_part(part_name, ipv6_prefix) for part_name in part_names])
            else:
                raise ConfigError(
                    f"got {one!r}, expected a callable, text made of {_SYNTAX}, or a list of these", code="RL-029"
                )
        self.text = " | ".join(texts)
        self.identity: Final = _first_present([_all_joined([read for _, read in parts]) for parts in alternatives])
        kinds = [tuple(kind for kind, _ in parts) for parts in alternatives]
        first = next((text for text, one in zip(texts, kinds, strict=True) if "user" not in one), "")
        reads_address = "+" not in first and first.partition("/")[0] == "ip"
        ipv4_bits, ipv6_bits = _prefixes(first[len("ip/") :], ipv6_prefix) if reads_address else (0, 0)
        self.address_prefix: Final = ipv6_bits if ipv4_bits == _MAX_IPV4_PREFIX else None
        self.place: Final = f"key {callable_place(spec) if callable(spec) else repr(self.text)}"
        self._kinds = {*kinds}
        parts = {part.partition(":")[::2] for one in kinds for part in one}
        self.headers = {name for kind, name in parts if kind == "header"}
        self.cookies = {name for kind, name in parts if kind == "cookie"}
        certain = [set(one) <= _CERTAIN for one in kinds]
        reachable = certain.index(True) + 1 if True in certain else len(kinds)
        self._reachable = kinds[:reachable]
        unread = [text for text, sure in zip(texts[reachable:], certain[reachable:], strict=True) if not sure]
        rest = [text for text in texts if text not in unread]
        self.no_effect: Final = (
            (" | ".join(unread), texts[reachable - 1], " | ".join(unread + rest)) if unread else None
        )
        self.is_all = self.text == "all"
        self.is_shared: Final = all(kind in ("all", "route") for kinds in self._kinds for kind in kinds)

    @property
    def may_read_user(self) -> bool:
        """Whether it may read the authenticated user."""
        return any("user" in kinds for kinds in self._kinds)

    def reads(self, kind: str) -> bool:
        """Return whether a part of it is of a kind, such as `user` or `header:x-api-key`."""
        return any(kind in kinds for kinds in self._kinds)

    @property
    def reads_route(self) -> bool:
        """Whether it may read the route."""
        return any("route" in kinds for kinds in self._kinds)

    @property
    def requires_user(self) -> bool:
        """Whether it is present only for authenticated users."""
        return all("user" in kinds for kinds in self._kinds)

    @property
    def is_client_controlled(self) -> bool:
        """Whether headers and cookies can make up the whole identity. A client can then have any number of identities.

        True for `header:x | ip`. False for `ip | header:x`, because `ip` is always present.
        """
        return any(all(kind.startswith(("header:", "cookie:")) for kind in kinds) for kinds in self._reachable)

    @property
    def needs_header(self) -> bool:
        """Whether each alternative reads a header or a cookie. A request without any of them has no identity."""
        return all(any(kind.startswith(("header:", "cookie:")) for kind in kinds) for kinds in self._kinds)

    def is_ambiguous(self, request: KeyContext) -> bool:
        """Return whether the request has a header or cookie of this key in a form that apps may read differently."""
        return any(len(request.header_lines(name)) > 1 for name in self.headers) or any(
            request.cookies.is_ambiguous(name) for name in self.cookies
        )

    def failed(self, results: CallResults) -> bool:
        """Return whether one of its callables raised or returned an invalid key."""
        return any(key_callable_failed(call, results) for call in self.callables)

    def raised(self, results: CallResults) -> bool:
        """Return whether one of its callables raised."""
        return any(results[call] is FAILED for call in self.callables)

    def can_collide_with(self, other: "Key") -> bool:
        """Return whether a request can have the same identity under both keys."""
        return not self._kinds.isdisjoint(other._kinds)  # noqa: SLF001  # same class

    def _compile_part(self, part_name: str, ipv6_prefix: int) -> _Part:
        kind, _, name = part_name.partition(":")
        if part_name == "ip" or kind.startswith("ip/"):
            ipv4_bits, ipv6_bits = _prefixes(kind[3:], ipv6_prefix)
            return "ip", _ip(ipv6_bits) if ipv4_bits == _MAX_IPV4_PREFIX else _network(ipv4_bits, ipv6_bits)
        if part_name in _SIMPLE_PARTS:
            return part_name, _SIMPLE_PARTS[part_name]
        if is_callable_name(part_name):
            return self._call(part_name, resolve_callable(part_name))
        if kind in ("header", "cookie") and _NAME.fullmatch(name):
            if kind == "cookie":
                return part_name, lambda request, _, __: _encoded(part_name, request.cookies.only(name))
            check_no_underscore(name)
            name = name.lower()
            kind = f"header:{name}"
            return kind, lambda request, _, __: _encoded(kind, request.header(name))
        raise ConfigError(f"got {part_name!r}{_hint(part_name)} expected {_SYNTAX}", code="RL-029")

    def _call(self, kind: str, function: RequestCallable) -> _Part:
        self.callables.append(function)
        kind = re.sub(r"[^A-Za-z0-9_.:]", "-", kind)
        return kind, lambda _, __, results: _encoded(kind, key_result(function, results))


def _first_present(alternatives: Sequence[_PartReader]) -> _PartReader:
    def identity(request: KeyContext, route: str, results: CallResults) -> str | None:
        for read in alternatives:
            encoded = read(request, route, results)
            if encoded is not None:
                return encoded
        return None

    return identity


def _all_joined(reads: Sequence[_PartReader]) -> _PartReader:
    if len(reads) == 1:
        return reads[0]

    def joined(request: KeyContext, route: str, results: CallResults) -> str | None:
        parts = [read(request, route, results) for read in reads]
        return "+".join([part for part in parts if part is not None]) if None not in parts else None

    return joined


def _encoded(kind: str, value: str | None) -> str | None:
    return encode_part(kind, value) if value else None


def _ip(prefix: int) -> _PartReader:
    def read(request: KeyContext, _: str, __: CallResults) -> str | None:
        client = request.client
        if client is None or is_ipv4(client):
            return client and f"ip={client}"
        return _encoded("ip", client_address(client, prefix))

    return read


def _network(ipv4_prefix: int, ipv6_prefix: int) -> _PartReader:
    def read(request: KeyContext, _: str, __: CallResults) -> str | None:
        address = client_address(request.client, ipv6_prefix)
        if address is not None and ":" not in address:
            address = str(IPv4Network((address, ipv4_prefix), strict=False))
        return _encoded("ip", address)

    return read


_SIMPLE_PARTS: Final[dict[str, _PartReader]] = {
    "user": lambda request, _, __: None if (user := request.user) is None else _encoded("user", user),
    "route": lambda _, route, __: _encoded("route", route),
    "all": lambda _, __, ___: "all=all",
}


def _hint(part_name: str) -> str:
    """Return `, did you mean ...?;` or the fix of a part that is recognized; else a comma."""
    if field := _FIELD.fullmatch(part_name):
        return (
            f", and a key cannot read {field[1]!r} from a form or query; give a callable of the request that returns "
            "it, or a key such as 'ip';"
        )
    if _FUNCTION.fullmatch(part_name):
        return f", did you mean 'call:{part_name}'?;"
    if part_name.lower() in _ADDRESS_NAMES:
        return ", did you mean 'ip'?;"
    is_header = _HEADER.fullmatch(part_name)
    hint = f", did you mean 'header:{part_name}'?" if is_header else _did_you_mean_part(part_name)
    return f"{hint};" if hint else ","


def _did_you_mean_part(part_name: str) -> str:
    joined = [
        f" {sign} ".join(sorted(names, key=_CERTAIN.__contains__) if sign == "|" else names)  # the last one is certain
        for sign, words in (("|", _OR), ("+", _AND))
        if len(names := words.split(part_name)) > 1 and all(map(_is_known, names))
    ]
    if joined:
        return f", did you mean {' or '.join(map(repr, joined))}?"
    kind, colon, name = map(str.strip, part_name.partition(":"))
    if colon and _NAME.fullmatch(name) and (near := closest_match(kind, _PREFIXES)):
        return f", did you mean '{near}:{name}'?"
    return did_you_mean(part_name, ("ip", *_SIMPLE_PARTS))


def _is_known(name: str) -> bool:
    return name in ("ip", *_SIMPLE_PARTS) or name.partition(":")[0] in _PREFIXES


def _prefixes(text: str, ipv6_prefix: int) -> tuple[int, int]:
    """Return the bits of an IPv4 and of an IPv6 address that a key reads. `text`: what follows `ip/`, or nothing."""
    if not text:
        return _MAX_IPV4_PREFIX, ipv6_prefix
    match = _PREFIX.fullmatch(text)
    ipv4, last = (None, "0") if match is None else match.groups()
    bits = int(last)
    if ipv4 is None and _MIN_IPV4_PREFIX <= bits < _MIN_PREFIX:
        return bits, ipv6_prefix
    ipv4_bits = _MAX_IPV4_PREFIX if ipv4 is None else int(ipv4)
    if _MIN_IPV4_PREFIX <= ipv4_bits <= _MAX_IPV4_PREFIX and _MIN_PREFIX <= bits <= _MAX_PREFIX:
        return ipv4_bits, bits
    raise ConfigError(
        f"got 'ip/{text}', expected ip/{_MIN_IPV4_PREFIX} to ip/{_MIN_PREFIX - 1}, the bits of an IPv4 network, "
        f"ip/{_MIN_PREFIX} to ip/{_MAX_PREFIX}, those of an IPv6 network, or both, such as ip/24/56",
        code="RL-029",
    )


def check_ipv6_prefix(option: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a valid number of bits."""
    if type(value) is not int or not _MIN_PREFIX <= value <= _MAX_PREFIX:
        raise ConfigError(
            f"{option}: got {value!r}, expected a whole number from {_MIN_PREFIX} to {_MAX_PREFIX}", code="RL-029"
        )


def check_key(option: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a valid key."""
    with error_location(option):
        Key(value, ANY_PREFIX)


def key_or_placeholder(value: Any) -> KeySpec:
    """Return the key, or `all` in place of an invalid one, which another check reports."""
    try:
        Key(value, ANY_PREFIX)
    except ConfigError:
        return "all"
    return value  # type: ignore[no-any-return]  # just checked
