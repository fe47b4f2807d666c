"""`find_line` finds the line of a problem in a TOML file."""

import pytest

from ratelimit_mw import ConfigError, asgi
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import find_line
from web.asgi_talk import App200

TEXT = '''# limits = "1/minute"
limits = [
    "5/minute", # key = 1
    ["x"], {limit = "6/minute"},
]
"key" = """
exempt = "no key"
[[rules]]
"""
store.url = "x"

[[rules]]
path = "/a[" # ]
limits = "[5/minute"

[rules.queue]
limit = 5

[[ rules ]]  # the second
name = 'b"'
path = "/b"

[headers]
x = 1
'''


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("limits: got 5", 2),
        ("limits[1]: got 5", 2),
        ("key: got 'x'", 6),
        ("store: got", 10),
        ("exempt: got 'no'", None),
        ("unknown setting `key`: did you mean", 6),
        ("unknown setting `nowhere`", None),
        ("rules[0]: unknown setting `path`", 13),
        ("rules[0].limits: got", 14),
        ("rules[0].limits[0].cost: got", 14),
        ("rules[0].queue: got", 16),
        ("rules[1] (b).path: got", 21),
        ("rules[1] (b).limits: required", 19),
        ("rules[1] (b) can never match", 19),
        ("rules[7].path: got", None),
        ("headers: got", 23),
        ("", None),
    ],
)
def test_find_line_returns_the_line_of_a_problem(problem: str, line: int | None) -> None:
    assert find_line(TEXT, problem) == line


def test_find_line_returns_the_start_of_an_inline_list_of_rules() -> None:
    assert find_line('limits = []\nrules = [\n  {path = "x"},\n]\n', "rules[0].path: got 'x'") == 2


def test_error_lists_mistakes_of_all_groups_of_settings() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(limits="9/hour", trusted_proxies=["*"], proxy_header="x y", ipv6_prefix=1)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "proxy_header",
        "trusted_proxies[0]",
        "ipv6_prefix",
    ]


def test_error_names_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_HEADERS", "some")
    with pytest.raises(ConfigError) as caught:
        asgi.RateLimitMiddleware(App200(), limits="lots")
    starts = [problem.split(" got")[0] for problem in caught.value.problems]
    assert starts == ["limits: 'lots':", "RATELIMIT_MW_HEADERS: headers:"]
    asgi.RateLimitMiddleware(App200(), limits="9/hour", headers="both")  # an option takes precedence over the variable


def test_error_names_the_index_and_name_of_the_rule() -> None:
    with pytest.raises(ConfigError, match=r"^rules\[1\] \(login\)\.limits: 'lots': got no rate"):
        Settings(limits=[], rules=[{"path": "/", "limits": []}, {"path": "/", "limits": "lots", "name": "login"}])
