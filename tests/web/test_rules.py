"""Rules: what a path template means, and what a rule is made of."""

from itertools import pairwise
from typing import Any

import pytest

from ratelimit_mw import SlidingWindowCounter, TokenBucket
from ratelimit_mw.items import Item, compile_items
from ratelimit_mw.paths import Paths, normal_path
from ratelimit_mw.rules import Rule, rule_from

UUID = "123e4567-e89b-12d3-a456-426614174000"

MATCHES: list[tuple[str | list[str], str, bool]] = [  # templates, a path as received, whether it is one of these
    ("/", "/", True),
    ("/", "", False),
    ("/a", "/a", True),
    ("/a", "/A", False),
    ("/a", "/a/", False),
    ("/a", "/a\n", False),
    ("/a", "/ab", False),
    ("/a.b", "/axb", False),
    ("/a+(b)", "/a+(b)", True),
    ("/users/{id}", "/users/7", True),
    ("/users/{id}", "/users/", False),
    ("/users/{id}", "/users/7/8", False),
    ("/users/{id}", "/users/\n", True),
    ("/users/{id}/posts/{post_id}", "/users/7/posts/x y", True),
    ("/{id:int}", "/007", True),
    ("/{id:int}", "/-7", False),
    ("/{id:int}", "/\u0667", False),  # a digit, but not one of ours
    ("/{n:float}", "/1.5", True),
    ("/{n:float}", "/1.", False),
    ("/{id:uuid}", f"/{UUID}", True),
    ("/{id:uuid}", f"/{UUID.replace('-', '')}", True),
    ("/{id:uuid}", f"/{UUID}0", False),
    ("/{id:str}", "/é", True),
    ("/api/{rest:path}", "/api/", True),
    ("/api/{rest:path}", "/api/a/b//c", True),
    ("/api/{rest:path}", "/api", False),
    ("/api/{rest:path}/edit", "/api/a/b/edit", True),
    (["/a", "/b/{id:int}"], "/b/1", True),
    (["/a", "/b/{id:int}"], "/b", False),
]


@pytest.mark.parametrize(("templates", "path", "expected"), MATCHES)
def test_templates(templates: str | list[str], path: str, *, expected: bool) -> None:
    assert Paths("path", templates).match(path, normal=False) is expected


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/", "/"),
        ("", "/"),
        ("//", "/"),
        ("/a", "/a"),
        ("/a/", "/a"),
        ("//a", "/a"),
        ("/a//b", "/a/b"),
        ("/./a/.", "/a"),
        ("/a/../b", "/b"),
        ("/../../a", "/a"),
        ("/a/..", "/"),
        ("/a/b/../../..", "/"),
        ("a", "/a"),
        ("*", "/*"),
        ("/...", "/..."),
        ("/.a/..b/c.", "/.a/..b/c."),
        ("/a\n/", "/a"),
        ("/a\n\n", "/a"),
        ("/a\nb", "/a\nb"),
        ("/.\n", "/"),
        ("/\\..\\a", "/\\..\\a"),
        ("/%2e%2e/a", "/%2e%2e/a"),  # a server has decoded once; nobody decodes twice
    ],
)
def test_normal_path(path: str, normal: str) -> None:
    assert normal_path(path) == normal
    assert normal_path(normal) == normal


@pytest.mark.promise(10)
@pytest.mark.parametrize("part", ["/a", "/", "/.", "/..", "/a/..", "/" + "a" * 100, "\n", "/{", "a/./", "..//"])
def test_long_paths_take_no_time_to_speak_of(part: str) -> None:
    path = part * 100_000  # every step once, or this would not end
    templates = ["/{a}/{b}/{c}", "/{rest:path}/end", "/{id:int}", "/{n:float}/x", "/{id:uuid}", "/a/{x}/"]
    paths = Paths("path", templates)
    assert not paths.match(path + "$", normal=False)
    normal = normal_path(path + "$")
    assert not any(one == two == "/" for one, two in pairwise(normal))
    paths.match(normal, normal=True)


@pytest.mark.parametrize(
    ("template", "path", "received", "normal"),
    [
        ("/a/", "/a/", True, False),
        ("/a/", "/a", False, True),
        ("/a//b", "/a//b", True, False),
        ("/a//b", "/a/b", False, True),
        ("/a", "/a", True, True),
        ("/", "/", True, True),
    ],
)
def test_a_template_is_normalised_like_a_path(template: str, path: str, *, received: bool, normal: bool) -> None:
    paths = Paths("path", template)
    assert (paths.match(path, normal=False), paths.match(path, normal=True)) == (received, normal)
    assert paths.always_two == (template not in ("/", "/a"))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"path": "/"}, "root"),
        ({"path": "/login"}, "login"),
        ({"path": "/login", "methods": ["POST"]}, "POST_login"),
        ({"path": "/", "methods": ["GET", "POST"]}, "GET_POST"),
        ({"path": ["/a", "/b/{id}"]}, "a_b_id"),
        ({"path": "/käse"}, "k_se"),
        ({"path": "/" + "x" * 100}, "x" * 64),
        ({"path": "/login", "name": "mine"}, "mine"),
    ],
)
def test_names(fields: dict[str, Any], name: str) -> None:
    assert Rule(limits=[], **fields).full_name == name


@pytest.mark.parametrize(
    ("limits", "items"),
    [
        ([], []),
        ((), []),
        ("5/minute", [Item(limit=SlidingWindowCounter(5, 60))]),
        ("5/minute; 6/hour", [Item(limit=SlidingWindowCounter(5, 60)), Item(limit=SlidingWindowCounter(6, 3600))]),
        (TokenBucket(5, 60), [Item(limit=TokenBucket(5, 60))]),
        (
            {"limit": "5/minute", "key": "ip", "cost": 2, "name": "n", "shadow": True},
            [Item(limit=SlidingWindowCounter(5, 60, name="n"), key="ip", cost=2, shadow=True)],
        ),
        ([{"limit": TokenBucket(5, 60, name="a"), "name": "b"}], [Item(limit=TokenBucket(5, 60, name="b"))]),
        ([{"limit": TokenBucket(5, 60, name="a"), "name": None}], [Item(limit=TokenBucket(5, 60, name="a"))]),
        (
            ["5/minute; 6/hour", {"limit": "7/day"}],
            [Item(limit=SlidingWindowCounter(*rate)) for rate in ((5, 60), (6, 3600), (7, 86400))],
        ),
        (Item(limit=TokenBucket(5, 60), cost=0), [Item(limit=TokenBucket(5, 60), cost=0)]),
    ],
)
def test_what_limits_may_be(limits: Any, items: list[Item]) -> None:
    assert compile_items("limits", limits) == items


def test_a_table_is_a_rule() -> None:
    rule = Rule(path="/a", limits="5/minute", methods=["GET"], key="ip", final=False, on_store_error="deny")
    table = {"path": "/a", "limits": "5/minute", "methods": ["GET"], "key": "ip", "final": False}
    assert rule_from({**table, "on_store_error": "deny"}) == rule
    assert rule_from(rule) is rule
    defaults = Rule(path="/a", limits=[])
    assert (defaults.final, defaults.exempt, defaults.shadow, defaults.key) == (True, False, False, None)
    assert Rule(path="/a", exempt=True).limits_by(None, None) == ()
