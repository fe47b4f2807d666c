"""Who is on a list: the safelist and the blocklist."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest
from typing import Annotated, Any, Final, TypedDict

from ratelimit_mw.addresses import LONGEST, Networks, parse_address
from ratelimit_mw.calls import Call, asked, call_from, named_call
from ratelimit_mw.client_ip import check_no_underscore
from ratelimit_mw.errors import ConfigError, Mistakes, located
from ratelimit_mw.request import Request
from ratelimit_mw.words import TOKEN, check_words

_REMEMBERED: Final = 4096  # addresses


class HeaderOptions(TypedDict, total=False):
    """A member of a list that is known by a header's secret value."""

    header: Annotated[str, "its name"]
    value: Annotated[str, "its value, all of it; compared in constant time"]


MemberSpec = str | HeaderOptions | Call  # a network or address, `call:package.module:function`; a header; a callable


class Members:
    """Networks, headers and callables, compiled. `place`: which list; the ConfigErrors name its members."""

    __slots__ = ("_calls", "_headers", "_within", "place")

    def __init__(self, place: str, value: object) -> None:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise ConfigError(f"{place}: found {_hidden(value)}, allowed is a list of networks, headers and callables")
        self.place: Final = place
        self._calls: Final[list[Call]] = []
        self._headers: Final[list[tuple[str, bytes]]] = []
        networks: list[Networks] = []
        mistakes = Mistakes()
        for index, member in enumerate(value):
            with mistakes.at(f"{place}[{index}]"):
                if isinstance(member, Mapping):
                    self._headers.append(_header(member))
                elif callable(member) or named_call(member):
                    self._calls.append(call_from(member, plain=True))
                elif isinstance(member, str):
                    networks.append(_network(member))
                else:
                    raise ConfigError(
                        f"found {_hidden(member)}, allowed is a network, a table of header and value, a callable"
                    )
        mistakes.tell()

        @lru_cache(maxsize=_REMEMBERED)
        def within(client: str) -> bool:
            address = parse_address(client)
            return address is not None and any(address in network for network in networks)

        self._within: Final = within if networks else None

    def have(self, request: Request, *, once: bool) -> bool:
        """Whether the request's client is one of them; what a callable says that raises is not heard.

        `once`: a header must stand there once; else any of its lines counts.
        """
        client = request.client
        if self._within is not None and client is not None and len(client) <= LONGEST and self._within(client):
            return True
        for name, secret in self._headers:
            values = request.header_lines(name)
            if once:
                values = values if len(values) == 1 else ()
            else:  # WSGI servers make one line of several
                values = [*values, *[part.strip(" \t") for value in values for part in value.split(",")]]
            if any(_same(value, secret) for value in values):
                return True
        return any(asked(call, request, self.place, "the client is not on this list") for call in self._calls)


def _same(line: str, secret: bytes) -> bool:
    return compare_digest(line.encode("utf-8", "surrogatepass"), secret)


def _header(table: Mapping[Any, Any]) -> tuple[str, bytes]:
    check_words(table, HeaderOptions)
    name, value = table.get("header"), table.get("value")
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise ConfigError(f"header: found {name!r:.100}, allowed is the name of a header such as 'X-Internal-Token'")
    with located("header"):
        check_no_underscore(name)
    if not isinstance(value, str) or not value:
        raise ConfigError("value: allowed is text that is not empty; who sends it in that header is on the list")
    return name.lower(), value.encode("utf-8", "surrogatepass")


def _network(text: str) -> Networks:
    try:
        return Networks("", [text])
    except ConfigError as error:  # its place is known further out
        raise ConfigError(*[problem.removeprefix("[0]: ") for problem in error.problems]) from None


def _hidden(value: object) -> str:
    """What a message may show: tables hold secrets."""
    if isinstance(value, Mapping):
        return "a table"
    return f"{value!r:.100}" if value is None or isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
