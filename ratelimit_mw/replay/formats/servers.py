"""Formats that users define in their servers: nginx's `log_format` and Apache's `LogFormat`."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.replay.formats.patterns import Literal, PatternFormat, Piece, Value
from ratelimit_mw.replay.times import TimeParser, clf_time, epoch_time, iso_time, strftime_time

COMMON: Final = '%h %l %u %t "%r" %>s %b'
COMBINED: Final = f'{COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'

_NGINX_VALUES: Final = {
    "remote_addr": "client",
    "remote_user": "user",
    "request": "request",
    "request_method": "method",
    "request_uri": "path",
    "uri": "path",
    "document_uri": "path",
    "status": "status",
    "request_time": "duration",
    "host": "header:host",
    "http_host": "header:host",
}
_NGINX_TIMES: Final[dict[str, TimeParser]] = {"msec": epoch_time, "time_iso8601": iso_time, "time_local": clf_time}
_NGINX_VARIABLE: Final = re.compile(r"\$(?:\{([a-z0-9_]+)\}|([a-z0-9_]+))")
_NGINX_LINE: Final = re.compile(r"log_format\s+\S+\s+(?:escape=\w+\s+)?")
_NGINX_TEXT: Final = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([^\s;]+)")
_NGINX_ESCAPE: Final = re.compile(r"\\(['\"\\])")

_APACHE_VALUES: Final = {
    "h": "client",
    "a": "client",
    "u": "user",
    "r": "request",
    "m": "method",
    "U": "path",
    "s": "status",
    "V": "header:host",
    "v": "header:host",
    "D": "duration",
    "T": "duration",
}
_APACHE_UNITS: Final = {"ms": 1000.0, "us": 1.0, "s": 1_000_000.0}
_APACHE_DIRECTIVE: Final = re.compile(r"%(?:%|[!,0-9]{0,60}+[<>]?+(?:\{([^}]*+)\})?+([<>]?+)(\^?+[A-Za-z]{1,3}))")
_APACHE_TWO_LETTERS: Final = ("^ti", "^to", "^FB")
_APACHE_TIME: Final = re.compile(r"%\{(?:begin:|end:)?([^{}]*)\}t")
_APACHE_TIMES: Final = {  # the parts of one time, by the prefix that all of them have
    "begin:": re.compile(r"%\{begin:[^{}]*\}t(?:[^%{}]*%\{begin:[^{}]*\}t)+"),
    "end:": re.compile(r"%\{end:[^{}]*\}t(?:[^%{}]*%\{end:[^{}]*\}t)+"),
    "": re.compile(r"%\{(?!begin:|end:)[^{}]*\}t(?:[^%{}]*%\{(?!begin:|end:)[^{}]*\}t)+"),
}
_APACHE_FRACTIONS: Final = ("msec_frac", "usec_frac")
_EPOCH_YEAR: Final = 1970
# directives of C that Python lacks
_STRFTIME: Final = {"%T": "%H:%M:%S", "%F": "%Y-%m-%d", "%R": "%H:%M", "%D": "%m/%d/%y", "%h": "%b"}
_APACHE_LINE: Final = re.compile(r"LogFormat\s+\"((?:[^\"\\]|\\.)*)\"")


def is_server_format(text: str) -> bool:
    """Return whether the text is a format of nginx or Apache, and not the name of a format."""
    return "$" in text or "%" in text


def server_format(text: str) -> PatternFormat:
    """Compile nginx's `log_format` or Apache's `LogFormat`, as the whole line or only its text.

    Raises `ConfigError` if a replay cannot read it.
    """
    return _nginx(text) if "$" in text and "%" not in text.split("$", 1)[0] else _apache(text)


def _nginx(text: str) -> PatternFormat:
    text = text.strip()
    if (line := _NGINX_LINE.match(text)) is not None:
        texts = ("".join(found) for found in _NGINX_TEXT.findall(text, line.end()))
        text = "".join(_NGINX_ESCAPE.sub(r"\1", one) for one in texts)
    names = [braced or bare for braced, bare in _NGINX_VARIABLE.findall(text)]
    times = [name for name in _NGINX_TIMES if name in names]  # the most exact first
    stamp = times[0] if times else ""
    pieces = list(_nginx_pieces(text, stamp))
    parse = _NGINX_TIMES.get(stamp, clf_time)
    return PatternFormat("nginx", pieces, parse, logs_end=True)


def _nginx_pieces(text: str, stamp: str) -> Iterator[Piece]:
    end = 0
    for found in _NGINX_VARIABLE.finditer(text):
        if found.start() > end:
            yield Literal(text[end : found.start()])
        end = found.end()
        name = found[1] or found[2]
        if name in _NGINX_TIMES:
            yield Value("stamp" if name == stamp else "", spaces=int(name == "time_local"))
        elif name in _NGINX_VALUES:
            yield Value(_NGINX_VALUES[name])
        elif name.startswith("http_"):
            header = f"header:{name.removeprefix('http_').replace('_', '-')}"
            yield Value(header, is_list=header == "header:x-forwarded-for")
        elif name.startswith("cookie_"):
            yield Value(f"cookie:{name.removeprefix('cookie_')}")
        else:
            yield Value("", is_list=name.startswith("upstream_") or name == "proxy_add_x_forwarded_for")
    if end < len(text):
        yield Literal(text[end:])


def _apache(text: str) -> PatternFormat:
    text = text.strip()
    if (line := _APACHE_LINE.match(text)) is not None:
        text = line[1].replace('\\"', '"').replace("\\\\", "\\")
    text = _with_times_joined(text.replace("\\t", "\t"))
    pieces: list[Piece] = []
    time: tuple[list[Piece], TimeParser, bool] | None = None
    unit, end = 1_000_000.0, 0
    for found in _APACHE_DIRECTIVE.finditer(text):
        if found.start() > end:
            pieces.append(Literal(text[end : found.start()]))
        end = found.end()
        argument, letter = found[1], found[3] or "%"
        if letter != "%" and letter not in _APACHE_TWO_LETTERS and len(letter) > 1:
            end -= len(letter) - 1  # `%hx` is `%h` and an x
            letter = letter[0]
        if letter == "%":
            pieces.append(Literal("%"))
        elif letter == "t":
            if time is not None or argument in _APACHE_FRACTIONS:
                pieces += _other_time(argument)
            else:
                time = _apache_time(argument)
                pieces += time[0]
        else:
            pieces.append(_apache_value(letter, argument))
            if letter in "DT":
                unit = 1.0 if letter == "D" else _APACHE_UNITS.get(argument or "s", 1_000_000.0)
    if end < len(text):
        pieces.append(Literal(text[end:]))
    _, parse, logs_end = time or ([], clf_time, False)
    return PatternFormat("apache", list(_joined(pieces)), parse, logs_end=logs_end, duration_unit=unit)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces with one literal between two values. The literal ends a value with spaces, such as a user's name."""
    for is_literal, some in groupby(pieces, key=lambda piece: isinstance(piece, Literal)):
        if is_literal:
            yield Literal("".join(piece.text for piece in some if isinstance(piece, Literal)))
        else:
            yield from some


def _with_times_joined(text: str) -> str:
    """Replace the directives that write the parts of one time, such as `%{%T}t.%{msec_frac}t`, by one directive."""
    for prefix, times in _APACHE_TIMES.items():
        text = times.sub(partial(_joined_time, prefix), text)
    return text


def _joined_time(prefix: str, found: re.Match[str]) -> str:
    form = _APACHE_TIME.sub(lambda part: "%f" if part[1] in _APACHE_FRACTIONS else part[1], found[0])
    return f"%{{{prefix}{form}}}t"


def _other_time(argument: str | None) -> list[Piece]:
    """Return the pieces of a `%t` that a replay does not need."""
    return [Literal("["), Value("", spaces=1), Literal("]")] if argument is None else [Value("", argument.count(" "))]


def _apache_time(argument: str | None) -> tuple[list[Piece], TimeParser, bool]:
    """Return the pieces of `%t`, the parser of its text, and whether it is the end of a request."""
    if argument is None:
        return [Literal("["), Value("stamp"), Literal("]")], clf_time, False
    ends = argument.startswith("end:")
    form = argument.removeprefix("begin:").removeprefix("end:")
    if form in ("sec", "msec", "usec", "sec.%f"):
        return [Value("stamp")], epoch_time, ends
    form = re.sub("%.", lambda found: _STRFTIME.get(found[0], found[0]), form)
    try:
        moment = datetime.strptime(datetime.now(UTC).strftime(form), form)  # noqa: DTZ007  # a trial
        if moment.year < _EPOCH_YEAR:
            raise ValueError("it has no date")  # noqa: TRY301  # like the errors of `strptime`
    except (ValueError, re.error) as error:
        raise ConfigError(
            f"--format: %{{{argument}}}t is a form of time that cannot be read: {error}", code="RL-056"
        ) from None
    return [Value("stamp", spaces=form.count(" "))], strftime_time(form), ends


def _apache_value(letter: str, argument: str | None) -> Value:
    if letter == "i" and argument:
        header = f"header:{argument.lower()}"
        return Value(header, is_list=header == "header:x-forwarded-for")
    if letter == "C" and argument:
        return Value(f"cookie:{argument}")
    if letter == "a" and argument == "c":
        return Value("")  # the peer of the connection, which is a proxy if it differs from the client
    return Value(_APACHE_VALUES.get(letter, ""))
