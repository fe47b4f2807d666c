"""Tests that each format is read as its vendor documents it, and that no line raises."""

import gzip
import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import split
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import many
from ratelimit_mw import ConfigError
from ratelimit_mw.cli import main
from ratelimit_mw.replay import Report, replay
from ratelimit_mw.replay.formats import format_of
from ratelimit_mw.replay.formats.base import LogFormat
from ratelimit_mw.replay.formats.patterns import PatternFormat
from ratelimit_mw.replay.html import html_report
from ratelimit_mw.replay.reading import printable
from ratelimit_mw.replay.times import any_time, clf_time, duration_us, epoch_time, iso_time
from regular import is_linear
from replay.documented import (
    ALB,
    ALB_FIELDS,
    ALB_HTTP2,
    ALB_HTTPS,
    ALB_LAMBDA,
    ALB_WEBSOCKET,
    APACHE_COMBINED,
    APACHE_COMMON,
    APACHE_MILLISECONDS,
    APACHE_VIRTUAL_HOST,
    CADDY,
    CLOUDFRONT,
    CLOUDFRONT_FIELDS,
    CLOUDFRONT_FILE,
    COMBINED,
    COMMON,
    ENVOY,
    ENVOY_JSON,
    NGINX_COMBINED,
    caddy,
)
from replay.replayed import combined

NGINX = """log_format  main  '$remote_addr - $remote_user [$time_local] "$request" '
                      '$status $body_bytes_sent "$http_referer" '
                      '"$http_user_agent" "$http_x_forwarded_for" $msec $request_time "$cookie_sid"';"""
APACHE = r'LogFormat "%h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D \"%{X-Api-Key}i\"" combined'
FIELDS = "#Fields: date time cs-method c-ip cs-uri-stem sc-status"


class Read(NamedTuple):
    """The values that a format reads from a line. `time`: microseconds since 1970."""

    client: str
    user: str
    time: int
    request: str
    status: str
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


def read(log: LogFormat, line: str) -> Read:
    (record,), unread = log.read([line])
    assert unread == []
    client, user, stamp, request, status, *values = record
    time = log.time(stamp)
    assert time is not None
    return Read(client, user, time.us, request, str(status), tuple(log.names), tuple(values))


FRANK = Read("127.0.0.1", "frank", 971_211_336_000_000, "GET /apache_pb.gif", "200")


@pytest.mark.parametrize(
    "form", ["common", None, APACHE_COMMON, '$remote_addr - $remote_user [$time_local] "$request" $status']
)
def test_common_format_is_read(form: str | None) -> None:
    assert read(format_of(form, {}, [COMMON]), COMMON) == FRANK


@pytest.mark.parametrize("form", ["combined", None, APACHE_COMBINED, NGINX_COMBINED])
def test_combined_format_is_read(form: str | None) -> None:
    names, values = (
        ("header:referer", "header:user-agent"),
        ("http://www.example.com/start.html", "Mozilla/4.08 [en] (Win98; I ;Nav)"),
    )
    assert read(format_of(form, {}, [COMBINED]), COMBINED) == FRANK._replace(names=names, values=values)


def test_nginx_format_is_read() -> None:
    line = (
        '192.0.2.9 - john doe [10/Oct/2000:13:55:36 -0700] "POST /a\\x22b?c HTTP/1.1" 201 2326 "-" "curl/8" '
        '"203.0.113.7, 10.0.0.1" 971211336.120 0.020 "7f"'
    )
    log = format_of(NGINX, {}, [])
    found = read(log, line)
    assert found[:5] == ("192.0.2.9", "john doe", 971_211_336_120_000, 'POST /a"b', "201")
    assert dict(zip(found.names, found.values, strict=True)) == {
        "header:referer": "-",
        "header:user-agent": "curl/8",
        "header:x-forwarded-for": "203.0.113.7, 10.0.0.1",
        "duration": "0.020",
        "cookie:sid": "7f",
    }
    assert log.logs_end


def test_apache_format_is_read() -> None:
    line = f'{COMMON.replace("frank", "-")} "-" "a \\"quoted\\" agent" 1500 "k1"'
    found = read(format_of(APACHE, {}, []), line)
    assert found[:5] == ("127.0.0.1", "-", FRANK.time, FRANK.request, "200")
    assert found.values == ("-", 'a "quoted" agent', "1500", "k1")
    assert found.names == ("header:referer", "header:user-agent", "duration", "header:x-api-key")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("%{%Y-%m-%d %H:%M:%S %z}t %a %m %U %>s", "2000-10-10 13:55:36 -0700 127.0.0.1 GET /apache_pb.gif 200"),
        ('%a %{usec}t "%r" %s', '127.0.0.1 971211336000000 "GET /apache_pb.gif HTTP/1.0" 200'),
        (APACHE_MILLISECONDS, '10/Oct/2000 13:55:36.000 -0700 127.0.0.1 "GET /apache_pb.gif HTTP/1.0" 200'),
        ('%a %{sec}t.%{usec_frac}t "%r" %s', '127.0.0.1 971211336.000000 "GET /apache_pb.gif HTTP/1.0" 200'),
        (
            "%{begin:%F %T}t.%{begin:usec_frac}t %a %m %U %>s %{end:%T}t",
            "2000-10-10 20:55:36.000000 127.0.0.1 GET /apache_pb.gif 200 20:55:37",
        ),
        (
            'log_format quoted "$remote_addr [$time_local] \\"$request\\" " $status;',
            '127.0.0.1 [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200',
        ),
        (
            "$time_iso8601 $remote_addr $request $status",
            "2000-10-10T13:55:36-07:00 127.0.0.1 GET /apache_pb.gif HTTP/1.0 200",
        ),
        (
            '{"t":$msec,"a":"$remote_addr","m":"$request_method","u":"$request_uri","s":$status}',
            '{"t":971211336.000,"a":"127.0.0.1","m":"GET","u":"/apache_pb.gif?x","s":200}',
        ),
        (
            '$http_x_forwarded_for [$time_local] "$request" $status',
            '127.0.0.1 [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200',
        ),
    ],
)
def test_other_forms_of_apache_and_nginx_formats_are_read(form: str, line: str) -> None:
    assert read(format_of(form, {}, []), line)[:5] == ("127.0.0.1", "", *FRANK[2:5])


def test_fraction_of_a_time_in_parts_is_read() -> None:
    line = '10/Oct/2000 13:55:36.120 -0700 127.0.0.1 "GET / HTTP/1.0" 200'
    log = format_of(APACHE_MILLISECONDS, {}, [])
    assert log.time(log.read([line]).records[0][2]) == (971_211_336_120_000, False, -25_200)


def test_virtual_host_is_read() -> None:
    found = read(format_of(APACHE_VIRTUAL_HOST, {}, []), f"www.example.com {COMMON}")
    assert found == FRANK._replace(names=("header:host",), values=("www.example.com",))


@pytest.mark.parametrize("form", ["caddy", None])
def test_caddy_format_is_read(form: str | None) -> None:
    line = json.dumps(CADDY)
    log = format_of(form, {}, [line])
    found = read(log, line)
    assert found[:6] == ("127.0.0.1", "-", 1_646_861_401_524_102, "GET /", "200", ("duration", "headers"))
    assert found.values[0] == 0.000929675
    assert (found.values[1]["host"], found.values[1]["user-agent"]) == ("localhost", "curl/7.82.0")
    assert (log.name, log.logs_end, log.duration_unit) == ("caddy", True, 1e6)
    assert read(log, caddy(uri="/a%20b?q=1")).request == "GET /a%20b"
    for stamp in (1646861401524.1024, 1646861401524102400, "2022-03-09T21:30:01.524102Z", "09/Mar/2022:21:30:01 +0000"):
        assert read(log, json.dumps({**CADDY, "ts": stamp})).time // 1_000_000 == 1_646_861_401


@pytest.mark.parametrize("hidden", [[], ["REDACTED"]])
def test_hidden_credentials_of_caddy_are_missing_values(hidden: list[str]) -> None:
    credentials = ("header:authorization", "header:cookie", "cookie:sid")
    hiding = caddy(headers={"Authorization": hidden, "Cookie": hidden, "X-Api-Key": ["k"]})
    log = format_of("caddy", {}, [hiding])
    assert read(log, hiding).values[1] == {"host": "localhost", "x-api-key": "k"}
    assert [log.has_value(name) for name in (*credentials, "header:x-api-key")] == [False, False, False, True]
    showing = caddy(headers={"Authorization": ["Bearer t"], "Cookie": ["sid=7"]})
    log = format_of(None, {}, [hiding, showing])
    assert read(log, showing).values[1] == {"host": "localhost", "authorization": "Bearer t", "cookie": "sid=7"}
    assert [log.has_value(name) for name in credentials] == [True, True, True]


@pytest.mark.parametrize("line", [ENVOY, json.dumps(ENVOY_JSON)])
@pytest.mark.parametrize("form", ["envoy", None])
def test_envoy_format_is_read(form: str | None, line: str) -> None:
    log = format_of(form, {}, [line])
    found = read(log, line)
    assert (log.name, found.client, found.time) == ("envoy", "10.0.35.28", 1_460_751_420_310_000)
    assert (found.request, found.status) == ("POST /api/v1/locations", "204")
    assert duration_us(found.values[0], log.duration_unit) == 226_000
    assert dict(zip(found.names, found.values, strict=True)) == {
        "duration": found.values[0],
        "header:user-agent": "nsq2http",
        "header:x-request-id": "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2",
        "header:host": "locations",
    }
    assert not log.has_value("header:x-api-key")
    assert not log.logs_end


def test_forwarded_clients_of_envoy_are_read() -> None:
    line = json.dumps({**ENVOY_JSON, "x_forwarded_for": "203.0.113.7, 10.0.0.1"})
    assert read(format_of("envoy", {}, [line]), line).client == "203.0.113.7, 10.0.0.1"
    line = ENVOY.replace("10.0.35.28", "203.0.113.7, 10.0.0.1")
    assert read(format_of("envoy", {}, [line]), line).client == "203.0.113.7, 10.0.0.1"


@pytest.mark.parametrize(
    ("line", "client", "request_line", "status", "host"),
    [
        (ALB, "192.168.131.39", "GET /", "200", "www.example.com:80"),
        (ALB_HTTPS, "192.168.131.39", "GET /", "200", "www.example.com:443"),
        (ALB_HTTP2, "10.0.1.252", "GET /", "200", "10.0.2.105:773"),
        (ALB_WEBSOCKET, "10.0.0.140", "GET /", "101", "10.0.0.30:80"),
        (ALB_LAMBDA, "192.168.131.39", "GET /", "502", "www.example.com:80"),
        (ALB.replace("/ HTTP", "/shop?x=1 HTTP"), "192.168.131.39", "GET /shop", "200", "www.example.com:80"),
        (ALB.replace("192.168.131.39", "2001:db8::1"), "2001:db8::1", "GET /", "200", "www.example.com:80"),
        (ALB.replace("GET http://www.example.com:80/ HTTP/1.1", "- - - "), "192.168.131.39", "", "200", ""),
        (f"{ALB} 10.0.0.9", "192.168.131.39", "GET /", "200", "www.example.com:80"),  # a field that may be added
    ],
)
@pytest.mark.parametrize("form", ["alb", None])
def test_alb_format_is_read(
    form: str | None, line: str, client: str, request_line: str, status: str, host: str
) -> None:
    log = format_of(form, {}, [ALB])
    found = read(log, line)
    assert found[:2] == (client, "")
    assert found[3:5] == (request_line, status)
    assert found.time == {"http 2018-11": 1_543_616_568_364_000}.get(line[:12], 1_530_570_168_364_000)
    assert found.values == ("-" if line == ALB_WEBSOCKET else "curl/7.46.0", host)
    assert (log.logs_end, len(split(ALB))) == (False, len(ALB_FIELDS.split()))


@pytest.mark.parametrize("form", ["cloudfront", None])
def test_cloudfront_format_is_read(form: str | None) -> None:
    log = format_of(form, {}, CLOUDFRONT_FILE)
    assert len(CLOUDFRONT_FIELDS.split()) - 1 == CLOUDFRONT.count("\t") + 1 == 33
    found = read(log, CLOUDFRONT)
    assert found[:5] == ("192.0.2.100", "-", 1_575_493_351_000_000, "GET /index.html", "200")
    assert found.values[0] == "0.001"
    agent = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    agent += "Chrome/78.0.3904.108 Safari/537.36"
    assert found.values[1] == {"host": "d111111abcdef8.cloudfront.net", "user-agent": agent}
    values = CLOUDFRONT.split("\t")
    values[7], values[12], values[15], values[19] = (
        "/a%2520b%25C3%25BC",
        "sid=7;%20b=%257B",
        "app.example.com",
        "203.0.113.9",
    )
    found = read(log, "\t".join(values))
    assert found.request == "GET /a%20b%C3%BC"  # as in the request; the log encodes it again
    assert (found.values[1]["host"], found.values[1]["cookie"]) == ("app.example.com", "sid=7; b=%7B")
    assert found.values[1]["x-forwarded-for"] == "203.0.113.9"
    assert format_of(form, {}, [CLOUDFRONT]).read([CLOUDFRONT]) == log.read([CLOUDFRONT])  # without header lines


def test_cloudfront_format_follows_the_fields_line() -> None:
    line = "2019-12-04\t21:02:31\tPUT\t192.0.2.1\t/x\t201"
    log = format_of("cloudfront", {}, ["#Version: 1.0", FIELDS, line])
    found = read(log, line)
    assert (found.client, found.request, found.status, found.names) == ("192.0.2.1", "PUT /x", "201", ("headers",))
    names = ("header:host", "header:x-forwarded-for", "cookie:sid")
    assert [log.has_value(name) for name in names] == [False, False, False]
    assert [format_of("cloudfront", {}, CLOUDFRONT_FILE).has_value(name) for name in names] == [True, True, True]
    assert log.read(["2019-12-04"]).unread == ["2019-12-04"]
    log = format_of("cloudfront", {}, [FIELDS.replace(" sc-status", ""), line])
    assert not log.has_status


def test_json_is_read_by_its_fields() -> None:
    fields = {"ip": ".who.addr", "time": ".at", "request": ".line", "status": ".code", "header:X-Key": ".heads.k[0]"}
    line = '{"who":{"addr":"192.0.2.1"},"at":"2000-10-10T20:55:36Z","line":"GET /ü?x HTTP/1.1",'
    line += '"code":200,"heads":{"k":["v"]}}'
    log = format_of(None, fields, [])
    found = read(log, line.encode().decode("latin-1"))
    assert found[:5] == ("192.0.2.1", "-", FRANK.time, "GET /\u00c3\u00bc", "200")
    assert (found.names, found.values) == (("header:x-key",), ("v",))
    missing = ["{}", "[]", "7", '{"who":{"addr":"192.0.2.1"}}', "{"]
    assert log.read(missing).unread == missing


@pytest.mark.parametrize(
    ("form", "fields", "problem"),
    [
        ("combind", {}, "--format: got 'combind' ('combined'?), expected one of common, combined, caddy"),
        ("$remote_addr $status", {}, "the format lacks the time ($time_local, %t) and the request"),
        ("$remote_addr$request [$time_local]", {}, "have nothing between them"),
        ("%h %{%Q}t %r", {}, "%{%Q}t is a form of time that cannot be read"),
        ("%h %{%T}t %r", {}, "%{%T}t is a form of time that cannot be read: it has no date"),
        ("json", {"ip": ".a"}, "--field: time, method, path is missing"),
        ("json", {"ip": ".a", "adress": ".b"}, "--field: got adress, expected ip, time"),
        ("json", {"ip": ".a..b", "time": ".t", "request": ".r"}, "expected the path of a field"),
        ("combined", {"ip": ".a"}, "only the format json has fields"),
        (None, {}, "the format of the log was not recognized"),
    ],
)
def test_invalid_format_is_an_error(form: str | None, fields: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        format_of(form, fields, ["neither this", "nor that"])


FORMATS = [
    *(format_of(name, {}, []) for name in ("common", "combined", "caddy", "envoy", "alb", "cloudfront", NGINX, APACHE)),
    format_of(None, {"ip": ".ip", "time": ".ts", "method": ".m", "path": ".p"}, []),
]
GOOD = [COMMON, COMBINED, json.dumps(CADDY), ENVOY, json.dumps(ENVOY_JSON), ALB, CLOUDFRONT, CLOUDFRONT_FIELDS]


@st.composite
def broken(draw: st.DrawFn) -> str:
    """Draw a good line with a part replaced by any text."""
    line = draw(st.sampled_from(GOOD))
    start, end = sorted((draw(st.integers(0, len(line))), draw(st.integers(0, len(line)))))
    return line[:start] + draw(st.text(st.characters(max_codepoint=255), max_size=30)) + line[end:]


@many
@given(st.lists(st.one_of(broken(), st.text(st.characters(max_codepoint=255))), max_size=4))
def test_no_line_raises(lines: list[str]) -> None:
    for log in FORMATS:
        records, unread = log.read(lines)
        assert len(records) + len(unread) <= len(lines)
        for record in records:
            assert len(record) == 5 + len(log.names)
            log.time(record[2])
    for line in lines:
        assert printable(line).isprintable()


@many
@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.sampled_from(["9" * 30, "1e999", "0001-01-01"])))
def test_no_time_raises(value: Any) -> None:
    for parse in (any_time, clf_time, epoch_time, iso_time):
        time = parse(value)
        assert time is None or 0 <= time.us < 1 << 53
    duration = duration_us(value, 1000.0)
    assert duration is None or duration >= 0


@pytest.mark.parametrize(
    ("offset", "shown"),
    [
        ("+2359", "2000-10-10T13:55:36+23:59"),
        ("-2359", "2000-10-10T13:55:36-23:59"),
        ("+2400", None),
        ("-2400", None),
        ("+2360", None),
        ("+9900", None),
    ],
)
def test_time_with_an_offset_of_a_day_or_more_is_unread(offset: str, shown: str | None) -> None:
    time = clf_time(f"10/Oct/2000:13:55:36 {offset}")
    assert (None if time is None else str(time)) == shown


@many
@given(st.binary(max_size=300))
def test_no_file_raises(content: bytes) -> None:
    packed = content.startswith(b"\x1f\x8b")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ConfigError, match="cannot be read") if packed else nullcontext(),
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        report = replay({"limits": "5/minute"}, "-", format="combined")
        assert report.lines >= report.unread


@pytest.mark.parametrize("log", [log for log in FORMATS if isinstance(log, PatternFormat)], ids=lambda log: log.name)
def test_patterns_match_in_linear_time(log: PatternFormat) -> None:
    assert is_linear(log._fast.pattern)
    assert is_linear(log._slow.pattern)


def test_files_are_read_in_order_of_time_even_compressed(tmp_path: Path) -> None:
    old, new = tmp_path / "access.log.1.gz", tmp_path / "access.log"
    old.write_bytes(gzip.compress("".join(combined(at, "192.0.2.1") for at in range(40)).encode()))
    new.write_text("".join(combined(at, "192.0.2.1") for at in range(40, 80)))
    one = tmp_path / "both.log"
    one.write_text("".join(combined(at, "192.0.2.1") for at in range(80)))
    settings = {"limits": "30/minute using fixed_window"}
    reports = [replay(settings, *logs) for logs in ((new, old), (old, new), (one,))]
    assert [report.as_json() for report in reports] == [reports[2].as_json()] * 3
    assert (reports[0].lines, reports[0].refused) == (80, 30)


@pytest.mark.parametrize("form", ["whole", "fractions"])
def test_lines_slightly_out_of_order_are_sorted_and_others_reported(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ratelimit_mw.replay.reading._REACH", 10)
    texts = [combined(at, "192.0.2.1") for at in range(60)]
    options: dict[str, Any] = {"format": "combined"}
    if form == "fractions":
        texts = [f'192.0.2.1 {1_700_000_000.5 + at:.3f} "GET / HTTP/1.1" 200\n' for at in range(60)]
        options = {"format": '$remote_addr $msec "$request" $status'}
    log = tmp_path / "access.log"
    settings = {"limits": "30/minute using fixed_window", "key": "ip"}

    def times(order: Sequence[int]) -> tuple[list[float], Report]:
        log.write_text("".join(texts[index] for index in order))
        found: list[float] = []
        report = replay(settings, log, **options, on_decision=lambda time, _: found.append(time))
        return found, report

    in_order, report = times(range(60))
    assert report.late == 0
    workers = [
        index for start in range(0, 60, 10) for index in (*range(start + 9, start + 4, -1), *range(start, start + 5))
    ]
    assert times(workers) == (in_order, report)  # each line is less than ten lines from its place

    first_comes_last, report = times([*range(1, 60), 0])
    assert sorted(first_comes_last) == first_comes_last
    assert (report.late, report.refused, first_comes_last[0]) == (1, 30, in_order[1])
    note = "lines too far out of order to be sorted, which count at the time of the line before: 1"
    assert report.notes[-1] == note
    assert note in html_report(report)
    (tmp_path / "limits.json").write_text(json.dumps(settings))
    words = ["replay", str(tmp_path / "limits.json"), str(log), "--format", options["format"]]
    assert main(words) == 0
    assert f"  {note}\n" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["late"], found["notes"][-1]) == (1, note)

    far_ahead, report = times([59, *range(59)])  # a wrong clock does not disturb the other lines
    assert (far_ahead, report.late) == (in_order, 0)


def test_reach_of_sorting_is_divided_among_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.replay.reading._REACH", 10)
    logs = [tmp_path / name for name in ("a.log", "b.log")]
    late = []
    for distance in (5, 12):
        for log in logs:
            log.write_text("".join(combined(at, "192.0.2.1") for at in (*range(1, distance + 1), 0, *range(20, 60))))
        late.append(replay({"limits": "5/minute"}, *logs).late)
    assert late == [0, 2]


def test_many_alternating_lines_of_two_seconds_are_sorted(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(combined(at % 2, "192.0.2.1") for at in range(2000)))
    times: list[float] = []
    report = replay({"limits": "5/minute"}, log, on_decision=lambda time, _: times.append(time))
    assert (report.late, report.lines) == (0, 2000)
    assert [int(time) - int(times[0]) for time in times] == [0] * 1000 + [1] * 1000


@pytest.mark.parametrize("form", ["common", "combined", '%h %l %u [%{%d/%b/%Y:%H:%M:%S %z}t] "%r" %>s'])
def test_user_name_with_a_space_is_read(form: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(combined(0, "192.0.2.1").replace(" - - [", " - Jane Doe [") + combined(1, "192.0.2.1"))
    report = replay({"limits": "1/minute", "key": "user", "plain_keys": True}, log, format=form)
    assert (report.lines, report.unread, report.refused) == (2, 0, 0)
    report = replay({"limits": "1/minute", "key": "user | ip"}, log, suggest=True)
    assert (report.unread, [one.clients for one in report.suggested][:1]) == (0, [2])


def test_error_names_the_unreadable_log(tmp_path: Path) -> None:
    broken_gzip = tmp_path / "cut.gz"
    broken_gzip.write_bytes(gzip.compress(combined(0, "192.0.2.1").encode() * 1000)[:-20])
    with pytest.raises(ConfigError, match=r"cut.gz: cannot be read: Compressed file ended"):
        replay({"limits": "5/minute"}, broken_gzip, format="combined")
    with pytest.raises(ConfigError, match=r"none.log: cannot be read: No such file"):
        replay({"limits": "5/minute"}, tmp_path / "none.log")


def test_a_log_given_twice_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(combined(0, "192.0.2.1"))
    with pytest.raises(ConfigError, match=r"^logs: .*/access.log is given twice, so each of its requests would count"):
        replay({"limits": "5/minute"}, log, tmp_path / "." / ".." / tmp_path.name / "access.log")


def test_requests_are_sorted_by_their_computed_starts(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(
        '192.0.2.1 1700000003.000 2.500 "GET /slow HTTP/1.1" 200\n'
        '192.0.2.1 1700000001.000 0.100 "GET /b HTTP/1.1" 200\n'
        '192.0.2.1 1700000002.000 1.900 "GET /a HTTP/1.1" 200\n'
    )
    times: list[float] = []
    form = '$remote_addr $msec $request_time "$request" $status'
    replay({"limits": "5/minute"}, log, format=form, on_decision=lambda time, _: times.append(time))
    assert times == [1_700_000_000.1, 1_700_000_000.5, 1_700_000_000.9]
