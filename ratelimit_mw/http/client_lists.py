"""Compiles the safelist and the blocklist, and matches requests against them."""

from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import Annotated, Any, Final, TypedDict

from ratelimit_mw.core.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.core.validation import TOKEN, reject_unknown_keys
from ratelimit_mw.http.callables import RequestCallable, evaluate_predicate, is_callable_name, resolve_callable
from ratelimit_mw.http.client_ip import check_no_underscore
from ratelimit_mw.http.networks import Network, Networks, parse_network, shortest
from ratelimit_mw.http.request import Request


class HeaderOptions(TypedDict, total=False):
    """An entry of a safelist or blocklist: matches clients that send this header with this secret value."""

    header: Annotated[str, "the name of the header"]
    value: Annotated[str, "the complete value of the header; compared in constant time"]


ClientListEntry = (
    str | HeaderOptions | RequestCallable
)  # a network or address, `call:package.module:function`; a header; a callable


class ClientList:
    """A compiled list of networks, headers and callables.

    `place`: its name in errors and logs. `has_only_networks`: whether the address
    alone decides.
    """

    __slots__ = ("_callables", "_headers", "has_only_networks", "networks", "place")

    def __init__(self, place: str, value: object) -> None:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise ConfigError(
                f"{place}: got {_redacted(value)}, expected a list of networks, headers and callables", code="RL-031"
            )
        self.place: Final = place
        self._callables: Final[list[RequestCallable]] = []
        self._headers: Final[list[tuple[str, bytes]]] = []
        networks: list[Network] = []
        mistakes = ErrorCollector()
        for index, entry in enumerate(value):
            with mistakes.collect(f"{place}[{index}]"):
                if isinstance(entry, Mapping):
                    self._headers.append(_header(entry))
                elif callable(entry) or is_callable_name(entry):
                    self._callables.append(resolve_callable(entry, plain=True))
                elif isinstance(entry, str):
                    networks.append(parse_network(entry))
                else:
                    raise ConfigError(
                        f"got {_redacted(entry)}, expected a network, a table of header and value, a callable",
                        code="RL-031",
                    )
        mistakes.raise_if_any()
        self.networks: Final = Networks(networks)
        self.has_only_networks: Final = not self._headers and not self._callables

    def matches(self, request: Request, *, once: bool) -> bool:
        """Return whether the request's client is on the list. A callable that raises does not match.

        `once`: ignore a header with several lines in the request. Otherwise any of the lines can match.
        """
        if (client := shortest(request.client)) is not None and client in self.networks:
            return True
        for name, secret in self._headers:
            values = request.header_lines(name)
            if once:
                values = values if len(values) == 1 else ()
            else:  # WSGI servers join several lines into one
                values = [*values, *[part.strip(" \t") for value in values for part in value.split(",")]]
            if any(_equals_secret(value, secret) for value in values):
                return True
        return any(
            evaluate_predicate(call, request, self.place, "the client is not on this list") for call in self._callables
        )


def _equals_secret(value: str, secret: bytes) -> bool:
    return compare_digest(value.encode("utf-8", "surrogatepass"), secret)


def _header(table: Mapping[Any, Any]) -> tuple[str, bytes]:
    reject_unknown_keys(table, HeaderOptions)
    name, value = table.get("header"), table.get("value")
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise ConfigError(
            f"header: got {name!r:.100}, expected the name of a header such as 'X-Internal-Token'", code="RL-031"
        )
    with error_location("header"):
        check_no_underscore(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(
            "value: expected text that is not empty; a client that sends it in that header is on the list",
            code="RL-031",
        )
    return name.lower(), value.encode("utf-8", "surrogatepass")


def _redacted(value: object) -> str:
    """Return text for an error message, without the contents of tables, which hold secrets."""
    if isinstance(value, Mapping):
        return "a table"
    return f"{value!r:.100}" if value is None or isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
