"""The text formats of proxies and of services: Envoy, AWS's Application Load Balancer and CloudFront."""

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import unquote

from ratelimit_mw.replay.formats.base import HEADERS, LogFormat, ReadLines, Record, without_port
from ratelimit_mw.replay.formats.patterns import Literal, PatternFormat, Piece, Value
from ratelimit_mw.replay.requests import host_of_url, path_of_url, request_from
from ratelimit_mw.replay.times import LoggedTime, iso_time

_ENVOY: Final = (
    '[{stamp}] "{method} {path} {}" {status} {} {} {} {duration} {} "{client}" "{header:user-agent}" '
    '"{header:x-request-id}" "{header:host}"'
)
_ALB: Final = (
    '{} {} {} {client} {} {} {} {} {status} {} {} {} "{method} {path} {}" "{header:user-agent}" {} {} {} "{}" "{}" '
    '"{}" {} {stamp} "'
)

# the columns of CloudFront, for a file that begins in the middle
_CLOUDFRONT: Final = (
    *("date", "time", "x-edge-location", "sc-bytes", "c-ip", "cs-method", "cs(Host)", "cs-uri-stem", "sc-status"),
    *("cs(Referer)", "cs(User-Agent)", "cs-uri-query", "cs(Cookie)", "x-edge-result-type", "x-edge-request-id"),
    *("x-host-header", "cs-protocol", "cs-bytes", "time-taken"),
)
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
    path = path_of_url(url)
    request = f"{method} {path}" if path.startswith("/") else ""
    return (without_port(client), user, stamp, request, status, *extras, host_of_url(url))


class CloudFront(LogFormat):
    """The standard log of CloudFront: columns with tabs between them, which a line `#Fields:` names."""

    name = "cloudfront"
    names = ("duration", HEADERS)
    has_user = False

    def __init__(self) -> None:
        self._columns = self._indexes(_CLOUDFRONT)

    def read(self, lines: Sequence[str]) -> ReadLines:
        """See `LogFormat.read`."""
        records: list[Record] = []
        unread: list[str] = []
        for line in lines:
            if line.startswith("#"):
                if line.startswith(_FIELDS):
                    self._columns = self._indexes(line.removeprefix(_FIELDS).split())
            elif line and not line.isspace():
                record = self._record(line.rstrip("\r\n").split("\t"))
                (unread.append(line) if record is None else records.append(record))
        return ReadLines(records, unread)

    def time(self, stamp: object) -> LoggedTime | None:
        """See `LogFormat.time`. The columns `date` and `time` are in UTC."""
        return iso_time(stamp)

    def has_value(self, name: str) -> bool:
        """Return whether the log has a header or cookie. It has those in its columns `cs(...)`."""
        return name in ("header:host", "header:referer", "header:user-agent") or name.startswith("cookie:")

    def _indexes(self, columns: Sequence[str]) -> dict[str, int]:
        return {name: index for index, name in enumerate(columns)}

    def _record(self, values: Sequence[str]) -> Record | None:
        columns = self._columns

        def value(name: str) -> str:
            index = columns.get(name, -1)
            return values[index] if 0 <= index < len(values) else "-"

        if len(values) < len(columns) or any(name not in columns for name in _NEEDED):
            return None
        headers = {
            "host": value("x-host-header") if value("x-host-header") != "-" else value("cs(Host)"),
            "referer": unquote(value("cs(Referer)"), "latin-1"),
            "user-agent": unquote(value("cs(User-Agent)"), "latin-1"),
            "cookie": unquote(value("cs(Cookie)"), "latin-1"),
        }
        return (
            value("c-ip"),
            "-",
            f"{value('date')}T{value('time')}",
            request_from(value("cs-method"), value("cs-uri-stem")),
            value("sc-status"),
            value("time-taken"),
            {name: text for name, text in headers.items() if text != "-"},
        )


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
