"""Formats with one JSON object on each line: Caddy's, Envoy's, and those whose fields the user names."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.replay.formats.base import (
    DURATION,
    HEADERS,
    LogFormat,
    ReadLines,
    Record,
    as_latin,
    request_from,
    request_of,
)
from ratelimit_mw.replay.times import any_time

_FIELDS: Final = ("ip", "time", "request", "method", "path", "status", "user", "duration", "host")
_KINDS: Final = ("header:", "cookie:")
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_HIDDEN: Final = "REDACTED"  # Caddy's text; older versions have no value
_ENVOY_HEADERS: Final = {
    "header:host": "authority",
    "header:user-agent": "user_agent",
    "header:x-request-id": "request_id",
}
_INDEX: Final = re.compile("[0-9]{1,9}")
_EXAMPLE: Final = "--field ip=.remote_addr --field time=.ts --field method=.method --field path=.path"

_decode: Final = msgspec.json.Decoder().decode

Read = Callable[[Any], Any]


class JsonFormat(LogFormat):
    """A format of JSON objects. `record_of`: returns the record of an object. If it raises, the line is unread."""

    def __init__(
        self, name: str, record_of: Callable[[Any], Record], names: Sequence[str], duration_unit: float = 1_000_000
    ) -> None:
        self.name = name
        self.time = any_time
        self.names = tuple(names)
        self.duration_unit = duration_unit
        self._record_of: Final = record_of

    def read(self, lines: Sequence[str]) -> ReadLines:
        """See `LogFormat.read`."""
        records: list[Record] = []
        unread: list[str] = []
        record_of = self._record_of
        for line in lines:
            try:
                records.append(record_of(_decode(line.encode("latin-1"))))
            except Exception:  # noqa: BLE001  # a line can be anything
                if line and not line.isspace():
                    unread.append(line)
        return ReadLines(records, unread)


class Caddy(JsonFormat):
    """Caddy's access log. It hides the values of headers with credentials, unless `log_credentials` is set.

    Such a header counts as logged if one of the first lines has its value.
    """

    logs_end = True

    def __init__(self) -> None:
        super().__init__("caddy", _of_caddy, (DURATION, HEADERS))
        self._logged: set[str] = set()

    def learn(self, lines: Sequence[str]) -> None:
        """See `LogFormat.learn`."""
        for record in self.read(lines).records:
            self._logged.update(_CREDENTIALS & record[-1].keys())

    def has_value(self, name: str) -> bool:
        """See `LogFormat.has_value`."""
        kind, _, header = name.partition(":")
        header = "cookie" if kind == "cookie" else header
        return header in self._logged or (kind == "header" and header not in _CREDENTIALS)


def _of_caddy(line: Any) -> Record:
    request = line["request"]
    headers = {name.lower(): as_latin(values[0]) for name, values in request.get("headers", {}).items() if values}
    for name in _CREDENTIALS:
        if headers.get(name) == _HIDDEN:
            del headers[name]
    headers["host"] = as_latin(request.get("host", ""))
    return (
        as_latin(request.get("client_ip") or request.get("remote_ip") or request["remote_addr"]),
        as_latin(line.get("user_id") or "-"),
        line["ts"],
        request_from(request["method"], as_latin(request["uri"])),
        line.get("status", ""),
        line.get("duration"),
        headers,
    )


def envoy_json() -> JsonFormat:
    """Return Envoy's log in JSON, with the names that Istio gives its fields."""
    log = JsonFormat("envoy", _of_envoy, (DURATION, *_ENVOY_HEADERS), duration_unit=1000)
    log.has_user = False
    return log


def _of_envoy(line: Any) -> Record:
    forwarded = line.get("x_forwarded_for") or ""
    peer = line.get("downstream_remote_address") or ""
    return (
        as_latin(forwarded if forwarded not in ("", "-") else _without_port(peer)),
        "-",
        line["start_time"],
        request_from(line["method"], as_latin(line["path"])),
        line.get("response_code", ""),
        line.get("duration"),
        *[as_latin(line.get(name) or "-") for name in _ENVOY_HEADERS.values()],
    )


def _without_port(address: str) -> str:
    """Return an address without the port after it: `192.0.2.1:443`, `[2001:db8::1]:443`."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() and (":" not in host or host.endswith("]")) else address


def json_fields(fields: Mapping[str, str]) -> JsonFormat:
    """Return a format of JSON objects whose fields the user names: `{"ip": ".client.addr", "time": ".ts"}`.

    Raises `ConfigError` for fields that a replay does not know, and for missing ones.
    """
    unknown = [name for name in fields if name not in _FIELDS and not name.startswith(_KINDS)]
    if unknown:
        raise ConfigError(
            f"--field: got {', '.join(unknown)}, expected {', '.join(_FIELDS)}, header:NAME or cookie:NAME",
            code="RL-051",
        )
    needed = ["ip", "time", *(["method", "path"] if "request" not in fields else [])]
    if missing := [name for name in needed if name not in fields]:
        raise ConfigError(
            f"--field: {', '.join(missing)} is missing, which a replay needs, such as in {_EXAMPLE}", code="RL-051"
        )
    paths = {name: _reader(path) for name, path in fields.items()}
    client, time, request, method, path, status, user, duration, host = (paths.get(name) for name in _FIELDS)
    headers = {name.lower(): read for name, read in paths.items() if name.startswith("header:")}
    if host is not None:
        headers["header:host"] = host
    cookies = {name: read for name, read in paths.items() if name.startswith("cookie:")}
    extras = {**headers, **cookies, **({} if duration is None else {DURATION: duration})}

    def text(read: Read | None, line: Any, default: str = "-") -> str:
        value = None if read is None else read(line)
        return default if value is None else as_latin(value if isinstance(value, str) else str(value))

    def needed_value(read: Read | None, line: Any) -> Any:
        value = None if read is None else read(line)
        if value is None:
            raise KeyError
        return value

    def record_of(line: Any) -> Record:
        stamp = needed_value(time, line)
        return (
            text(lambda line: needed_value(client, line), line),
            text(user, line),
            stamp,
            request_of(text(request, line))
            if request is not None
            else request_from(text(method, line), text(path, line)),
            text(status, line, ""),
            *[text(read, line) for read in extras.values()],
        )

    log = JsonFormat("json", record_of, tuple(extras))
    log.has_user, log.has_status = user is not None, status is not None
    return log


def _reader(path: str) -> Read:
    """Return a function that reads a path such as `.request.headers.X-Api-Key[0]`; its result is None without one."""
    steps: list[str | int] = []
    for part in path.removeprefix(".").replace("[", ".[").split("."):
        index = part.removeprefix("[").removesuffix("]")
        steps.append(int(index) if part.startswith("[") and _INDEX.fullmatch(index) else part)
    if "" in steps:
        raise ConfigError(
            f"--field: got {path!r}, expected the path of a field such as .request.remote_ip", code="RL-051"
        )

    def read(line: Any) -> Any:
        for step in steps:
            if isinstance(step, int):
                line = line[step] if isinstance(line, list) and step < len(line) else None
            else:
                line = line.get(step) if isinstance(line, dict) else None
        return line

    return read
