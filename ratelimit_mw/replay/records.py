"""Turns the records of a log into requests, and adds the values that the user assumes."""

import re
from collections.abc import Iterator, Sequence
from inspect import isawaitable
from typing import Any, Final

from ratelimit_mw.core.limit import microseconds
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, close_unawaited
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.networks import is_ipv4, parse_address
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.http.views import AsgiRequest, TargetRequest
from ratelimit_mw.replay.assumptions import Assumed
from ratelimit_mw.replay.formats.base import (
    CLIENT,
    FIRST_EXTRA,
    HEADERS,
    REQUEST,
    STATUS,
    USER,
    LogFormat,
    Record,
    as_latin,
)
from ratelimit_mw.settings import Settings

_STATUS: Final = re.compile("[1-9][0-9]{2}")


class RecordReader:
    """Turns records into requests. `proxy_header`: the header in which trusted proxies name the client, if any.

    Keys cannot read that header, because its address has become the client's.
    """

    def __init__(self, settings: Settings, log: LogFormat, assumed: Assumed) -> None:
        self._settings: Final = settings
        self._log: Final = log
        self._assumed: Final = assumed
        self._resolver: Final = (
            ClientIPResolver(settings.trusted_proxies, settings.proxy_header) if settings.trusted_proxies else None
        )
        self.proxy_header: Final = self._resolver.header if self._resolver is not None else None

    def request(self, record: Record) -> AsgiRequest:
        """Return the request of a record, with the values that the user assumes."""
        client, user = self.client(record), _user_of(record[USER])
        assumed = self._assumed
        prefix = self._settings.ipv6_prefix
        if assumed.user is not None:
            user = assumed.user.value(client, user, prefix)
        hidden = {self.proxy_header, *assumed.headers}
        headers = [header for header in self._logged_headers(record) if header[0] not in hidden]
        for name, source in assumed.headers.items():
            if (value := source.value(client, user, prefix)) is not None:
                headers.append((name, as_latin(value)))
        for name, source in assumed.cookies.items():
            if (value := source.value(client, user, prefix)) is not None:
                headers.append(("cookie", as_latin(f"{name}={value}")))
        method, _, target = record[REQUEST].partition(" ")
        fields = [(_bytes(name), _bytes(value)) for name, value in headers]
        peer = None if client is None else (client, 0)
        return TargetRequest(scope_from_parts(method, _bytes(target), fields, peer, user), client)

    def _logged_headers(self, record: Record) -> Iterator[tuple[str, str]]:
        for name, value in zip(self._log.names, record[FIRST_EXTRA:], strict=True):
            kind, _, own_name = name.partition(":")
            if name == HEADERS:
                yield from value.items()
            elif kind == "header" and value not in ("-", ""):
                yield own_name, value
            elif kind == "cookie" and value not in ("-", ""):
                yield "cookie", f"{own_name}={value}"

    def client(self, record: Record) -> str | None:
        """Return the client's address: the one in the log, or the one that it forwards if it is a trusted proxy."""
        if self._resolver is None and is_ipv4(record[CLIENT]):
            return record[CLIENT]  # type: ignore[no-any-return]  # text
        *forwarded, peer = [part.strip() for part in record[CLIENT].split(",")]
        if self._resolver is not None:
            if forwarded:
                values = [",".join(forwarded)]
            else:
                values = [value for name, value in self._logged_headers(record) if name == self.proxy_header]
            return self._resolver.client_in(peer, lambda _: values)
        return None if parse_address(peer) is None else peer

    def results(self, calls: Sequence[RequestCallable], request: AsgiRequest) -> CallResults:
        """Return the results of callables: the user's assumption, or the result for this request."""
        results: dict[RequestCallable, Any] = {}
        for call in calls:
            source = self._assumed.callables[call]
            if source.kind != "run":
                value: Any = source.value(request.client, request.user, self._settings.ipv6_prefix)
                results[call] = int(value) if source.kind == "text" and value.isdecimal() else value
                continue
            try:
                results[call] = call(request)
            except Exception:  # noqa: BLE001  # as in the middleware
                results[call] = FAILED
            if isawaitable(results[call]):
                close_unawaited(results[call])
                results[call] = FAILED
        return results

    def agent(self, record: Record) -> str:
        """Return the user agent; empty if the log does not tell."""
        return next((value for name, value in self._logged_headers(record) if name == "user-agent"), "")

    def status(self, record: Record) -> int | None:
        """Return the status of the response; None if it has none."""
        status = str(self._assumed.status or record[STATUS])
        return int(status) if _STATUS.fullmatch(status) else None

    def duration(self, record: Record) -> int:
        """Return how long the request took, in microseconds; 0 if that is unknown."""
        if "slots" in self._assumed.switches:
            return 0
        if self._assumed.duration is not None:
            return microseconds(self._assumed.duration)
        return self._log.duration(record)


def _user_of(text: str) -> str | None:
    """Return the user that a log names; None for `-` and empty text."""
    if text in ("", "-"):
        return None
    return text if text.isascii() else _bytes(text).decode("utf-8", "replace")


def _bytes(text: str) -> bytes:
    """Return the bytes of a log's text."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:  # text that the user assumes
        return text.encode("utf-8", "surrogatepass")
