"""The text formats of proxies and of services: Envoy, AWS's Application Load Balancer and CloudFront."""

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import unquote

from ratelimit_mw.replay.formats.base import DURATION, HEADERS, LogFormat, ReadLines, Record, request_from
from ratelimit_mw.replay.formats.patterns import Literal, PatternFormat, Piece, Value
from ratelimit_mw.replay.times import iso_time

_ENVOY: Final = (
    '[{stamp}] "{method} {path} {}" {status} {} {} {} {duration} {} "{client}" "{header:user-agent}" '
    '"{header:x-request-id}" "{header:host}"'
)
_ALB: Final = (
    '{} {} {} {client} {} {} {} {} {status} {} {} {} "{method} {path} {}" "{header:user-agent}" {} {} {} "{}" "{}" '
    '"{}" {} {stamp} "'
)

# the columns of CloudFront, for a file that begins in the middle; older files have only the first 19
_CLOUDFRONT: Final = (
    *("date", "time", "x-edge-location", "sc-bytes", "c-ip", "cs-method", "cs(Host)", "cs-uri-stem", "sc-status"),
    *("cs(Referer)", "cs(User-Agent)", "cs-uri-query", "cs(Cookie)", "x-edge-result-type", "x-edge-request-id"),
    *("x-host-header", "cs-protocol", "cs-bytes", "time-taken", "x-forwarded-for", "ssl-protocol", "ssl-cipher"),
    *("x-edge-response-result-type", "cs-protocol-version", "fle-status", "fle-encrypted-fields", "c-port"),
    *("time-to-first-byte", "x-edge-detailed-result-type", "sc-content-type", "sc-content-len"),
    *("sc-range-start", "sc-range-end"),
)
_LEAST: Final = 19
_CLOUDFRONT_HEADERS: Final = {
    "host": ("x-host-header", "cs(Host)"),
    "referer": ("cs(Referer)",),
    "user-agent": ("cs(User-Agent)",),
    "cookie": ("cs(Cookie)",),
    "x-forwarded-for": ("x-forwarded-for",),
}
_NEEDED: Final = ("c-ip", "cs-method", "cs-uri-stem", "date", "time")
_FIELDS: Final = "#Fields:"
_HOST: Final = "header:host"


def envoy() -> PatternFormat:
    """Return Envoy's default text format. Its client is the last address of X-Forwarded-For."""
    return PatternFormat("envoy", _pieces(_ENVOY), iso_time, duration_unit=1000)


class Alb(PatternFormat):
    """The access log of an Application Load Balancer. Its stamp is the time at which the request arrived."""

    def __init__(self) -> None:
        super().__init__("alb", _pieces(_ALB), iso_time)
        self.names = (*self.names, _HOST)

    def keep(self, names: Collection[str]) -> None:
        """See `LogFormat.keep`. The host is always there."""
        self.names = tuple(name for name in self.names if name != _HOST)
        super().keep(names)
        self.names = (*self.names, _HOST)

    def read(self, lines: Sequence[str]) -> ReadLines:
        """See `LogFormat.read`. The log has whole URLs; the app receives their paths."""
        records, unread = super().read(lines)
        return ReadLines([_of_alb(record) for record in records], unread)


def _of_alb(record: Record) -> Record:
    client, user, stamp, request, status, *extras = record
    method, _, url = request.partition(" ")
    path, host = url, ""
    if not url.startswith("/") and "://" in url:
        host, _, path = url.partition("://")[2].partition("/")
        path = f"/{path}"
    request = f"{method} {path}" if path.startswith("/") else ""
    address, _, port = client.rpartition(":")  # also in an IPv6 address without brackets
    return (address if port.isdecimal() else client, user, stamp, request, status, *extras, host)


class CloudFront(LogFormat):
    """The standard log of CloudFront: columns with tabs between them. A line `#Fields:` names the columns.

    It encodes the values of a request, also those that are encoded already: `/a%20b` is `/a%2520b`.
    """

    name = "cloudfront"
    names: Sequence[str] = (DURATION, HEADERS)
    has_user = False

    def __init__(self) -> None:
        self.time = iso_time  # without a zone, so in UTC
        self._columns = _indexes(_CLOUDFRONT)
        self._least = _LEAST

    def learn(self, lines: Sequence[str]) -> None:
        """See `LogFormat.learn`. The owner of a distribution chooses its columns."""
        self.read(lines)
        self.has_status = "sc-status" in self._columns
        self.names = (DURATION, HEADERS) if "time-taken" in self._columns else (HEADERS,)

    def read(self, lines: Sequence[str]) -> ReadLines:
        """See `LogFormat.read`."""
        records: list[Record] = []
        unread: list[str] = []
        for line in lines:
            if line.startswith("#"):
                if line.startswith(_FIELDS):
                    self._columns = _indexes(line.removeprefix(_FIELDS).split())
                    self._least = len(self._columns)
            elif line and not line.isspace():
                record = self._record(line.rstrip("\r\n").split("\t"))
                (unread.append(line) if record is None else records.append(record))
        return ReadLines(records, unread)

    def has_value(self, name: str) -> bool:
        """Return whether the log has a header or cookie, that is, a column for it."""
        kind, _, header = name.partition(":")
        columns = _CLOUDFRONT_HEADERS.get("cookie" if kind == "cookie" else header, ())
        return any(column in self._columns for column in columns)

    def _record(self, values: Sequence[str]) -> Record | None:
        columns = self._columns

        def value(name: str) -> str:
            index = columns.get(name, -1)
            return values[index] if 0 <= index < len(values) else "-"

        if len(values) < self._least or any(name not in columns for name in _NEEDED):
            return None
        headers: dict[str, str] = {}
        for header, names in _CLOUDFRONT_HEADERS.items():
            for name in names:
                if (text := value(name)) != "-":
                    headers[header] = unquote(text, "latin-1")
                    break
        return (
            value("c-ip"),
            "-",
            f"{value('date')}T{value('time')}",
            request_from(value("cs-method"), unquote(value("cs-uri-stem"), "latin-1")),
            value("sc-status"),
            *([value("time-taken")] if DURATION in self.names else []),
            headers,
        )


def _indexes(columns: Sequence[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(columns)}


def _pieces(text: str) -> list[Piece]:
    """Return the pieces of a format that is written with braces."""
    pieces: list[Piece] = []
    for part in text.split("{"):
        name, brace, literal = part.partition("}")
        if not brace:
            name, literal = "", part
        else:
            pieces.append(Value(name, is_list=name == "client"))
        if literal:
            pieces.append(Literal(literal))
    return pieces
