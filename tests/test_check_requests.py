"""Tests the output of `python -m ratelimit_mw check --request`."""

import re
import socket
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from checking import MODULE, Check, check_in, command
from ratelimit_mw.cli import main
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import RecordingStore
from ratelimit_mw.wsgi import RateLimitMiddleware

pytestmark = pytest.mark.promise(9)

REFUSED = "Refused with {}, without querying the store: "
BLOCKED = REFUSED.format(403) + "the client is on the blocklist."

SHOP = """
limits = "100/minute"
app_limits = {limit = "1000/second", key = "all"}
key = "user | ip"
key_secret = "open-sesame-street"
trusted_proxies = ["10.0.0.0/8"]
exempt = ["/health"]
safelist = ["203.0.113.0/24", "call:shop_of_check:staff"]
blocklist = ["198.51.100.0/24", {header = "X-Bad", value = "yes"}]
tier = "call:shop_of_check:plan"

[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = ["5/minute burst 2 using gcra", {limit = "20/hour using sliding_window_log", key = "user", shadow = true}]
key = "ip"
cost = 2

[[rules]]
name = "watched"
path = "/api/{rest:path}"
limits = "9/hour using fixed_window"
shadow = true

[[rules]]
name = "api"
path = "/api/{rest:path}"
host = "api.example.com"
when = "call:shop_of_check:open_now"
limits = {free = "60/hour", pro = "5000/1.5 hours"}
key = "call:shop_of_check:tenant | ip"
cost = "call:shop_of_check:cost"

[[rules]]
name = "open"
path = "/open"
exempt = true

[[rules]]
name = "bad"
path = "/bad"
limits = "call:shop_of_check:raises"
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    return check_in(tmp_path, monkeypatch, capsys)


def test_command_imports_callables_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "shop_of_check.py").write_text(MODULE, "utf-8")
    (tmp_path / "limits.toml").write_text(SHOP, "utf-8")
    done = command("check", "limits.toml", "--request", "GET /", "--user", "bob", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("limits.toml: no mistakes; 5 rules, no warnings\n\nGET / from 192.0.2.1, user bob\n")


def test_check_does_not_connect_to_the_store(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        assert "default" in check(f'limits = "5/minute"\nstore = "{url}"', "--request", "/")
        listening.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--request", "login"], "--request: got 'login', expected a method and a path such as 'POST /login'"),
        (
            ["--request", "GET /a b"],
            "--request: got 'GET /a b', expected a method and a path such as 'POST /login'",
        ),
        (
            ["--request", "/caf\udce9"],
            "--request: got '/caf\\udce9', expected a path in UTF-8, or with escapes such as %FF\n",
        ),
        (
            ["--request", "/", "--header", "X"],
            "--header: got 'X', expected a name and a value such as 'X-Api-Key: ",
        ),
        *(
            ([option, "a: b"], f"{option}: is a part of --request, such as --request 'POST /login'")
            for option in ("--ip", "--user", "--host", "--header")
        ),
        (["--request", "/", "--ip", "foo"], "--ip: got 'foo', expected an address such as 192.0.2.1"),
        (["--request", "/", "--header", "X: a\tb"], "--header: got 'a\\tb', expected text without control"),
    ],
)
def test_invalid_request_arguments_are_rejected(
    arguments: list[str], message: str, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path.cwd() / "limits.toml").write_text(SHOP, "utf-8")
    assert main(["check", "limits.toml", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"ratelimit_mw: {message}")


LOGIN = """
POST /login from 192.0.2.7, no user

Rules that apply, in order:
  app    app_limits, for every request
  login  rules[0], ends the search

Limits, charged in one step, all or none:
  app
    limit     1000/1s using sliding_window_counter
    rule      app
    key       all
    identity  all=all
    cost      1
    at most   2000 in any 1 s

  login
    limit     5/60s burst 2 using gcra
    rule      login
    key       ip
    identity  ip=192.0.2.7
    cost      2
    at most   6 in any 60 s

  login-2
    limit     20/3600s using sliding_window_log
    rule      login
    key       user
    identity  missing=user, one bucket for all requests without a key
    cost      2
    at most   20 in any 3600 s
    shadow    counted and reported, but never refuses

Results of callables:
  shop_of_check:staff  False

Log messages:
  key 'user': is missing; missing_key = 'shared' applies; if all requests lack it, authenticate outside the rate limiter
"""

API = """
GET /api//x, also matched as /api/x, from 2001:db8::7 (forwarded by 10.0.0.1), user bob

Rules that apply, in order:
  app      app_limits, for every request
  watched  rules[1], shadow
  api      rules[2], ends the search, tier pro (call:shop_of_check:plan=pro)

Limits, charged in one step, all or none:
  app
    limit     1000/1s using sliding_window_counter
    rule      app
    key       all
    identity  all=all
    cost      1
    at most   2000 in any 1 s

  watched
    limit     9/3600s using fixed_window
    rule      watched
    key       user | ip
    identity  user=bob
    cost      1
    at most   17 in any 3600 s
    shadow    counted and reported, but never refuses

  api
    limit     5000/5400s using sliding_window_counter
    rule      api
    key       call:shop_of_check:tenant | ip
    identity  call:shop_of_check:tenant=acme%20ltd
    cost      3
    at most   10000 in any 5400 s

Results of callables:
  shop_of_check:staff     False
  shop_of_check:open_now  True
  shop_of_check:plan      'pro'
  shop_of_check:tenant    'acme ltd'
  shop_of_check:cost      3
"""


def blocks(output: str) -> str:
    """Return the part of the output that is about the request."""
    return output.partition("\n")[2]


def test_check_prints_rules_and_limits_of_a_login_request(check: Check) -> None:
    assert blocks(check(SHOP, "--request", "POST /login", "--ip", "192.0.2.7")) == LOGIN


def test_check_prints_rules_and_limits_of_an_api_request_behind_a_proxy(check: Check) -> None:
    said = ["--host", "api.example.com", "--header", "X-Forwarded-For: 2001:db8::7", "--header", "X-Tenant: acme ltd"]
    assert blocks(check(SHOP, "--request", "/api//x?y=1", "--ip", "10.0.0.1", "--user", "bob", *said)) == API


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["GET /health"], "Not limited: the path is exempt."),
        (["/health", "--ip", "203.0.113.9"], "Not limited: the client is on the safelist."),
        (["/", "--user", "root"], "Not limited: the client is on the safelist."),
        (["/", "--ip", "198.51.100.1"], BLOCKED),
        (["/", "--header", "X-Bad: yes"], BLOCKED),
        (["/open"], "  open  rules[3], exempt, ends the search"),
        (["/bad"], "  bad  rules[4], ends the search, its callable returned no limits, so the default limits apply"),
        (["/bad"], "  shop_of_check:raises  raised ValueError: no plan"),
        (["/", "--ip", ""], "GET / from no address, no user"),
        (["/", "--ip", ""], "    identity  missing=user%20%7C%20ip, one bucket for all requests without a key"),
        (["OPTIONS /", "--header", "Origin: a", "--header", "Access-Control-Request-Method: PUT"],
         "  preflight  limits, in separate buckets for CORS preflights"),
        (["/%61pi/x"], "GET /api/x from 192.0.2.1, no user"),
    ],
)  # fmt: skip
def test_check_explains_requests_without_printing_the_secret(arguments: list[str], said: str, check: Check) -> None:
    lines = check(SHOP, "--request", *arguments).splitlines()
    assert said in lines
    assert not any("sesame" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('limits = "5/minute"\nenabled = false', "Not limited: enabled = false switches everything off."),
        ("limits = []", "No limit applies."),
        ("limits = []", "  default  limits, used by default, no limits"),
        (
            'limits = "5/minute"\nkey = "user"\nmissing_key = "deny"',
            "Refused with 403, without querying the store: a key is missing, and missing_key = 'deny'.",
        ),
        (
            'limits = "5/minute"\nkey = "user"\nmissing_key = "exempt"',
            "  default: skipped, because its key, user, is missing (missing_key)",
        ),
        (
            'limits = "call:shop_of_check:raises"',
            REFUSED.format(503) + "a callable returned no limits, and there are no others to use instead.",
        ),
        (
            'limits = "call:shop_of_check:none"',
            "  default  limits, used by default, its callable returned no limits, so the request is refused",
        ),
        (
            'limits = "call:shop_of_check:none"',
            (
                "  limits none: returned no valid limits; the default limits apply, and if these come from the same "
                "callable or are [], the request gets 503: limits: got None, expected text such as '100/minute', a "
                "Limit, a table or a list of these"
            ),
        ),
        (
            'limits = "5/minute"\n[[rules]]\npath = "/"\nlimits = "6/minute"\nwhen = "call:shop_of_check:raises"',
            "  root     rules[0], its `when` failed, so it applies and the search continues",
        ),
        (
            'limits = "5/minute"\ncount_status = [403, "401"]',
            "    settled   only responses with these statuses are charged: 401, 403",
        ),
        (
            'limits = "5/minute"\nsettle = "call:shop_of_check:true_cost"',
            "    settled   true_cost returns the actual cost",
        ),
        (
            'limits = "5/minute"\npenalty = "10 refusals per minute: 15 minutes"',
            "    penalty   10/60s ban 900s using ban",
        ),
        (
            'tier = "header:X-Plan"\nlimits = {free = "5/minute", pro = "9/minute"}',
            "  default  limits, used by default, tier free (header:X-Plan is missing)",
        ),
    ],
)
def test_check_explains_the_effect_of_other_settings(settings: str, said: str, check: Check) -> None:
    assert said in check(settings, "--request", "/").splitlines()


SLOTS_SAY = """\
  default-concurrent
    limit     2 at once
    rule      default
    key       ip
    identity  ip=192.0.2.1
    cost      1
    at most   2 requests in progress; a slot that is not renewed is free after 15 s
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", ""),
        ("queue = 5\nqueue_timeout = 2.5\n", "    queue     5 requests in each process, each for at most 2.5 s\n"),
    ],
)
def test_check_explains_concurrency_slots_and_their_queue(more: str, says: str, check: Check) -> None:
    printed = check(f'limits = []\nconcurrent = 2\nkey = "ip"\n{more}', "--request", "/")
    assert printed.endswith(SLOTS_SAY + says)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (
            "5/month in Europe/Berlin from 15 using calendar_window",
            "5 in each month of the calendar in Europe/Berlin, from 15",
        ),
        ("5/week from sunday using calendar_window", "5 in each week of the calendar in UTC, from sunday"),
        ("5/day using calendar_window", "5 in each day of the calendar in UTC"),
        ("0/minute", "0 in any 60 s"),
    ],
)
def test_check_explains_periods_of_the_calendar(limit: str, says: str, check: Check) -> None:
    assert f"    at most   {says}\n" in check(f'limits = "{limit}"', "--request", "/")


def test_worst_window_of_a_custom_algorithm_is_unknown(check: Check, tmp_path: Path) -> None:
    own = (
        "from ratelimit_mw import Limit\nclass Own(Limit, frozen=True, kw_only=True):\n    algorithm = 'own_of_check'\n"
    )
    (tmp_path / "own_of_check.py").write_text(f"{own}def limits(request):\n    return Own(5, 60)\n", "utf-8")
    printed = check('limits = "call:own_of_check:limits"', "--request", "/")
    assert "    at most   unknown for its algorithm\n" in printed


ROW = re.compile(
    r"^    limit     (.*)\n    rule      (.*)\n    key .*\n    identity  (\S+?)(?:,.*)?\n    cost      (\d+)$",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("request_line", "user", "ip"),
    [*product(("POST /login", "GET /login", "GET /api/x", "GET /", "GET /open"), ("", "bob"), ("192.0.2.7", ""))],
)
def test_printed_charges_match_those_of_the_middleware(request_line: str, user: str, ip: str, check: Check) -> None:
    shop = SHOP.replace('tier = "call:shop_of_check:plan"', 'tier = "user"')  # WSGI cannot await
    printed = check(shop, "--request", request_line, "--user", user, "--ip", ip, "--host", "api.example.com")
    store = RecordingStore()
    settings = Settings.of(Settings.load("limits.toml"), {"plain_keys": True, "store": store})
    method, path = request_line.split()
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": "api.example.com"}
    environ |= {"REMOTE_ADDR": ip} | ({"REMOTE_USER": user} if user else {})
    app: Any = RateLimitMiddleware(lambda *_: [], settings)
    app(environ, lambda *_: None)
    ((_, charges),) = store.calls
    rows = [(one.limit.notation, *one.key[1:].partition("}:")[::-2], str(one.cost)) for one in charges]
    assert ROW.findall(printed) == rows
