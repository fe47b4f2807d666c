"""Each format is read in the form that its vendor documents; no line raises."""

import gzip
import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
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
from replay.replayed import combined

NGINX = """log_format  main  '$remote_addr - $remote_user [$time_local] "$request" '
                      '$status $body_bytes_sent "$http_referer" '
                      '"$http_user_agent" "$http_x_forwarded_for" $msec $request_time "$cookie_sid"';"""
APACHE = r'LogFormat "%h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D \"%{X-Api-Key}i\"" combined'
CADDY = {
    "level": "info",
    "ts": 1646861401.5241024,
    "logger": "http.log.access",
    "msg": "handled request",
    "request": {
        "remote_ip": "127.0.0.1",
        "remote_port": "41342",
        "client_ip": "127.0.0.1",
        "proto": "HTTP/2.0",
        "method": "GET",
        "host": "localhost",
        "uri": "/a%20b?q=1",
        "headers": {"User-Agent": ["curl/7.82.0"], "Accept": ["*/*"], "Accept-Encoding": ["gzip, deflate, br"]},
        "tls": {"resumed": False, "version": 772, "cipher_suite": 4865, "proto": "h2", "server_name": "example.com"},
    },
    "bytes_read": 0,
    "user_id": "",
    "duration": 0.000929675,
    "size": 10900,
    "status": 200,
    "resp_headers": {"Server": ["Caddy"], "Content-Encoding": ["gzip"], "Content-Type": ["text/html; charset=utf-8"]},
}
ENVOY = (
    '[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" '
    '"nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"'
)
ENVOY_JSON = {
    "start_time": "2016-04-15T20:17:00.310Z",
    "method": "POST",
    "path": "/api/v1/locations",
    "protocol": "HTTP/2",
    "response_code": 204,
    "response_flags": "-",
    "duration": 226,
    "x_forwarded_for": "-",
    "user_agent": "nsq2http",
    "authority": "locations",
    "downstream_remote_address": "10.0.35.28:50000",
}
ALB = (
    "http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 "
    '0.000 0.001 0.000 200 200 34 366 "GET http://www.example.com:80/shop?x=1 HTTP/1.1" "curl/7.46.0" - - '
    "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "
    '"Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "-" '
    '"10.0.0.1:80" "200" "-" "-" TID_1234abcd5678ef90'
)
CLOUDFRONT = (
    "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\t"
    "Mozilla/5.0%20(Windows%20NT%2010.0;%20Win64;%20x64)\t-\tsid=7\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms\tapp.example.com\t"
    "https\t23\t0.001\t-\tTLSv1.2\tECDHE-RSA-AES128-GCM-SHA256\tHit\tHTTP/2.0\t-\t-\t11040\t0.001\tHit\ttext/html\t78\t-\t-"
)
FIELDS = "#Fields: date time cs-method c-ip cs-uri-stem sc-status"


class Read(NamedTuple):
    """What a format reads of a line. `time`: microseconds since 1970."""

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
COMMON = '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
COMBINED = f'{COMMON} "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)"'


@pytest.mark.parametrize("form", ["common", None, '$remote_addr - $remote_user [$time_local] "$request" $status'])
def test_common(form: str | None) -> None:
    assert read(format_of(form, {}, [COMMON]), COMMON) == FRANK


@pytest.mark.parametrize("form", ["combined", None])
def test_combined(form: str | None) -> None:
    names, values = (
        ("header:referer", "header:user-agent"),
        ("http://www.example.com/start.html", "Mozilla/4.08 [en] (Win98; I ;Nav)"),
    )
    assert read(format_of(form, {}, [COMBINED]), COMBINED) == FRANK._replace(names=names, values=values)


def test_nginx() -> None:
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


def test_apache() -> None:
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
def test_other_forms_of_servers(form: str, line: str) -> None:
    assert read(format_of(form, {}, []), line)[:5] == ("127.0.0.1", "", *FRANK[2:5])


@pytest.mark.parametrize("form", ["caddy", None])
def test_caddy(form: str | None) -> None:
    line = json.dumps(CADDY)
    found = read(format_of(form, {}, [line]), line)
    assert found[:6] == ("127.0.0.1", "-", 1_646_861_401_524_102, "GET /a%20b", "200", ("duration", "headers"))
    assert found.values[0] == 0.000929675
    assert (found.values[1]["host"], found.values[1]["user-agent"]) == ("localhost", "curl/7.82.0")


@pytest.mark.parametrize("line", [ENVOY, json.dumps(ENVOY_JSON)])
@pytest.mark.parametrize("form", ["envoy", None])
def test_envoy(form: str | None, line: str) -> None:
    log = format_of(form, {}, [line])
    found = read(log, line)
    assert (log.name, found.client, found.time) == ("envoy", "10.0.35.28", 1_460_751_420_310_000)
    assert (found.request, found.status) == ("POST /api/v1/locations", "204")
    assert duration_us(found.values[0], log.duration_unit) == 226_000
    assert log.has_value("header:host")


@pytest.mark.parametrize("form", ["alb", None])
def test_alb(form: str | None) -> None:
    found = read(format_of(form, {}, [ALB]), ALB)
    assert found[:5] == ("192.168.131.39", "", 1_530_570_168_364_000, "GET /shop", "200")
    assert found.values == ("curl/7.46.0", "www.example.com:80")


@pytest.mark.parametrize("form", ["cloudfront", None])
def test_cloudfront(form: str | None) -> None:
    log = format_of(form, {}, [CLOUDFRONT])
    found = read(log, CLOUDFRONT)
    assert found[:5] == ("192.0.2.100", "-", 1_575_493_351_000_000, "GET /index.html", "200")
    headers = found.values[1]
    assert (headers["host"], headers["cookie"]) == ("app.example.com", "sid=7")
    assert headers["user-agent"] == "Mozilla/5.0 (Windows NT 10.0; Win64; x64)"
    records, unread = log.read(["#Version: 1.0", FIELDS, "2019-12-04\t21:02:31\tPUT\t192.0.2.1\t/x\t201", "2019-12-04"])
    assert [(record[0], record[3], record[4]) for record in records] == [("192.0.2.1", "PUT /x", "201")]
    assert unread == ["2019-12-04"]


def test_json_by_fields() -> None:
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
        ("json", {"ip": ".a"}, "--field: time, method, path is missing"),
        ("json", {"ip": ".a", "adress": ".b"}, "--field: got adress, expected ip, time"),
        ("json", {"ip": ".a..b", "time": ".t", "request": ".r"}, "expected the path of a field"),
        ("combined", {"ip": ".a"}, "only the format json has fields"),
        (None, {}, "the format of the log was not recognized"),
    ],
)
def test_a_format_that_cannot_be_read_is_a_mistake(form: str | None, fields: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        format_of(form, fields, ["neither this", "nor that"])


FORMATS = [
    *(format_of(name, {}, []) for name in ("common", "combined", "caddy", "envoy", "alb", "cloudfront", NGINX, APACHE)),
    format_of(None, {"ip": ".ip", "time": ".ts", "method": ".m", "path": ".p"}, []),
]
GOOD = [COMMON, COMBINED, json.dumps(CADDY), ENVOY, json.dumps(ENVOY_JSON), ALB, CLOUDFRONT, FIELDS]


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A good line with a part replaced, or any text."""
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
def test_patterns_are_linear(log: PatternFormat) -> None:
    assert is_linear(log._fast.pattern)
    assert is_linear(log._slow.pattern)


def test_files_in_any_order_packed_or_not(tmp_path: Path) -> None:
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
def test_lines_out_of_order_count_at_their_own_time(
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
    assert times(workers) == (in_order, report)  # each is less than ten lines away

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


def test_several_logs_share_the_lines_that_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.replay.reading._REACH", 10)
    logs = [tmp_path / name for name in ("a.log", "b.log")]
    late = []
    for distance in (5, 12):
        for log in logs:
            log.write_text("".join(combined(at, "192.0.2.1") for at in (*range(1, distance + 1), 0, *range(20, 60))))
        late.append(replay({"limits": "5/minute"}, *logs).late)
    assert late == [0, 2]


def test_many_lines_of_two_seconds_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(combined(at % 2, "192.0.2.1") for at in range(2000)))
    times: list[float] = []
    report = replay({"limits": "5/minute"}, log, on_decision=lambda time, _: times.append(time))
    assert (report.late, report.lines) == (0, 2000)
    assert [int(time) - int(times[0]) for time in times] == [0] * 1000 + [1] * 1000


@pytest.mark.parametrize("form", ["common", "combined", '%h %l %u [%{%d/%b/%Y:%H:%M:%S %z}t] "%r" %>s'])
def test_a_user_whose_name_has_a_space(form: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(combined(0, "192.0.2.1").replace(" - - [", " - Jane Doe [") + combined(1, "192.0.2.1"))
    report = replay({"limits": "1/minute", "key": "user", "plain_keys": True}, log, format=form)
    assert (report.lines, report.unread, report.refused) == (2, 0, 0)
    report = replay({"limits": "1/minute", "key": "user | ip"}, log, suggest=True)
    assert (report.unread, [one.clients for one in report.suggested][:1]) == (0, [2])


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken_gzip = tmp_path / "cut.gz"
    broken_gzip.write_bytes(gzip.compress(combined(0, "192.0.2.1").encode() * 1000)[:-20])
    with pytest.raises(ConfigError, match=r"cut.gz: cannot be read: Compressed file ended"):
        replay({"limits": "5/minute"}, broken_gzip, format="combined")
    with pytest.raises(ConfigError, match=r"none.log: cannot be read: No such file"):
        replay({"limits": "5/minute"}, tmp_path / "none.log")


def test_starts_are_worked_out_and_put_in_order(tmp_path: Path) -> None:
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
