"""Tests that a key or tier that the log lacks is an error with its place, unless it is assumed: for each format."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.replay import replay
from replay.documented import ALB, CLOUDFRONT_FIELDS, COMBINED, COMMON, ENVOY, ENVOY_JSON, caddy
from replay.replayed import device_of, plan_of

FIELDS = {"ip": ".ip", "time": ".t", "method": ".m", "path": ".p"}
PLAIN = "#Fields: date time c-ip cs-method cs-uri-stem sc-status"
LOGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "common": ({"format": "common"}, [COMMON]),
    "combined": ({"format": "combined"}, [COMBINED]),
    "caddy": ({"format": "caddy"}, [caddy(headers={"Cookie": ["REDACTED"], "Authorization": []})]),
    "envoy": ({"format": "envoy"}, [ENVOY]),
    "envoy in JSON": ({"format": "envoy"}, [json.dumps(ENVOY_JSON)]),
    "alb": ({"format": "alb"}, [ALB]),
    "cloudfront": ({"format": "cloudfront"}, [PLAIN, "2019-12-04\t21:02:31\t192.0.2.1\tGET\t/\t200"]),
    "json": ({"fields": FIELDS}, ['{"ip":"192.0.2.1","t":1700000000,"m":"GET","p":"/"}']),
    "nginx": (
        {"format": '$remote_addr [$time_local] "$request" $status "$cookie_theme"'},
        ['192.0.2.1 [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 "dark"'],
    ),
    "apache": (
        {"format": r'LogFormat "%h %t \"%r\" %>s \"%{theme}C\" \"%{X-Other}i\""'},
        ['192.0.2.1 [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 "dark" "-"'],
    ),
}
TIERS = {"free": "5/minute", "pro": "9/minute"}
RULE = {"name": "home", "path": "/", "limits": "5/minute"}
CALLS = "call:replay.replayed"
COOKIE = "the log ({}) does not have cookie:sid; "
DEVICE = f"a log does not tell what {CALLS}:device_of would return; "
PLAN = f"a log does not tell what {CALLS}:plan_of would return; "
LACKING: dict[str, tuple[dict[str, Any], str, str]] = {
    "cookie": ({"key": "cookie:sid"}, f"key: {COOKIE}", "cookie:sid=ip"),
    "cookie or address": ({"key": "cookie:sid | ip"}, f"key: {COOKIE}", "cookie:sid=missing"),
    "cookie of a rule": (
        {"rules": [{**RULE, "key": "cookie:sid+ip"}]},
        f"rules[0] (home).key: {COOKIE}",
        "cookie:sid=text:a",
    ),
    "header": (
        {"key": "header:authorization"},
        "key: the log ({}) does not have header:authorization; ",
        "header:authorization=user",
    ),
    "callable": ({"key": device_of}, f"key: {DEVICE}", f"{CALLS}:device_of=run"),
    "name of a callable": ({"key": f"{CALLS}:device_of | ip"}, f"key: {DEVICE}", f"{CALLS}:device_of=ip"),
    "tier by cookie": ({"limits": TIERS, "tier": "cookie:sid"}, f"tier: {COOKIE}", "cookie:sid=text:pro"),
    "tier by callable": ({"limits": TIERS, "tier": plan_of}, f"tier: {PLAN}", f"{CALLS}:plan_of=run"),
    "tier of a rule": (
        {"rules": [{**RULE, "limits": TIERS, "tier": f"{CALLS}:plan_of"}]},
        f"rules[0] (home).tier: {PLAN}",
        f"{CALLS}:plan_of=text:free",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("name", LOGS)
def test_value_that_the_format_lacks_is_an_error(name: str, lacking: str, tmp_path: Path) -> None:
    (read, lines), (options, problem, assumption) = LOGS[name], LACKING[lacking]
    log = tmp_path / "access.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    settings = {"limits": "5/minute", **options}
    with pytest.raises(ConfigError) as caught:
        replay(settings, log, **read)
    (found,) = caught.value.problems
    assert found.startswith(problem.format(name.removesuffix(" in JSON")))
    assert "--assume" in found
    with pytest.raises(ConfigError):
        replay(settings, log, **read, assume=["header:x-other=ip"])  # another assumption does not help
    report = replay(settings, log, **read, assume=[assumption])
    assert (report.requests, report.unread) == (1, 0)


def test_header_in_a_log_of_caddy_needs_no_assumption(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    lines = [caddy(headers={"Cookie": [f"sid={number % 2}"]}) for number in range(4)]
    log.write_text("".join(f"{line}\n" for line in lines))
    report = replay({"limits": "1/minute", "key": "cookie:sid", "plain_keys": True}, log)
    assert [(one.client, one.refused) for one in report.rules[0].most] == [("cookie:sid=0", 1), ("cookie:sid=1", 1)]


def test_column_in_a_log_of_cloudfront_needs_no_assumption(tmp_path: Path) -> None:
    values = dict.fromkeys(CLOUDFRONT_FIELDS.split()[1:], "-")
    values |= {"date": "2019-12-04", "time": "21:02:31", "c-ip": "10.0.0.1", "cs-method": "GET", "sc-status": "200"}
    values |= {"cs-uri-stem": "/", "x-forwarded-for": "203.0.113.9", "cs(Cookie)": "sid=7"}
    log = tmp_path / "access.log"
    log.write_text("".join(f"{line}\n" for line in [CLOUDFRONT_FIELDS, *["\t".join(values.values())] * 3]))
    forwarded = replay({"limits": "1/minute", "trusted_proxies": ["10.0.0.0/8"]}, log)
    assert [(one.client, one.refused) for one in forwarded.rules[0].most] == [("203.0.113.9", 2)]
    assert replay({"limits": "1/minute", "key": "cookie:sid"}, log).rules[0].most[0].client == "cookie:sid=7"
