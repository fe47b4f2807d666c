"""Tests paths: template matching, the two forms of a path, the limits of each spelling, the cost of a look-up."""

from collections.abc import Sequence
from itertools import pairwise, product

import pytest

from function_calls import function_calls
from ratelimit_mw import ConfigError
from ratelimit_mw.http import path_index
from ratelimit_mw.http.path_index import PathTree, match_level
from ratelimit_mw.http.paths import Forms, Paths, covers, normal_path
from ratelimit_mw.http.request import strip_root
from ratelimit_mw.http.views import AsgiRequest
from web.path_cases import PATH_CASES, WHOLE_PATH_CASES, PathCase

UUID = "123e4567-e89b-12d3-a456-426614174000"

MATCHES: list[tuple[str | list[str], str, bool]] = [  # templates, a path as received, whether one matches
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
    ("/{id:int}", "/\u0667", True),  # a digit, which Werkzeug reads as 7
    ("/{n:float}", "/\u0661.\u0665", True),
    ("/{n:float}", "/1.5", True),
    ("/{n:float}", "/1.", False),
    ("/{id:uuid}", f"/{UUID}", True),
    ("/{id:uuid}", f"/{UUID.replace('-', '')}", True),
    ("/{id:uuid}", f"/{UUID}0", False),
    ("/{id:str}", "/é", True),
    ("/x{id}.json", "/x7.json", True),
    ("/x{id}.json", "/x.json", False),
    ("/api/{rest:path}", "/api/", True),
    ("/api/{rest:path}", "/api/a/b//c", True),
    ("/api/{rest:path}", "/api/a\nb", True),
    ("/api/{rest:path}", "/api", False),
    ("/api/{rest:path}/edit", "/api/a/b/edit", True),
    ("/api/{rest:path}/edit", "/api//edit", True),
    ("/api/{rest:path}/edit", "/api/edit", False),
    ("/ab{rest:path}bc", "/abc", False),  # the texts around a parameter do not overlap
    ("/ab{rest:path}bc", "/abbc", True),
    ("/ab{rest:path}bc", "/ab/bc", True),
    ("/a/{rest:path}/{id:int}/z", "/a/b/c/7/z", True),
    ("/a/{rest:path}/{id:int}/z", "/a/7/z", False),
    (["/a", "/b/{id:int}"], "/b/1", True),
    (["/a", "/b/{id:int}"], "/b", False),
]


@pytest.mark.parametrize(("templates", "path", "expected"), MATCHES)
def test_templates_match_paths_as_received(templates: str | list[str], path: str, *, expected: bool) -> None:
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
        ("/a\n/b/..", "/a"),
        ("/a/..\n/b/..", "/"),
        ("/a/a/../\n/..", "/a"),
        ("/a\n\n", "/a"),
        ("/a\nb", "/a\nb"),
        ("/.\n", "/"),
        ("/\\..\\a", "/\\..\\a"),
        ("/%2e%2e/a", "/%2e%2e/a"),  # the server decodes paths; they are not decoded again
    ],
)
def test_normal_path_normalizes_a_path_and_is_idempotent(path: str, normal: str) -> None:
    assert normal_path(path) == normal
    assert normal_path(normal) == normal


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
def test_a_template_is_normalized_like_a_path(template: str, path: str, *, received: bool, normal: bool) -> None:
    paths = Paths("path", ["/x", template])
    assert (paths.match(path, normal=False), paths.match(path, normal=True)) == (received, normal)
    assert paths.has_two_forms == (template not in ("/", "/a"))
    assert paths.received_templates == ["/x", template]
    assert paths.normal_templates == ["/x", normal_path(template)]


def applies(case: PathCase, readings: Sequence[str]) -> set[str]:
    """Return the limits by the design: a rule applies if it matches any form, an exemption only if it matches all."""
    paths = Paths("path", case.template)
    forms = Forms.of(readings)
    if case.exempt:
        return set() if paths.match_all(forms) else {"default"}
    met = []
    for templates, texts in ((paths.received_templates, forms.received), (paths.normal_templates, forms.normal)):
        index = PathTree([(each, 0) for each in templates], ignore_case=case.ignore_case)
        met += [[*index.matching_rules(text)] for text in texts]
    return {*(["rule"] if any(met) else []), *([] if all(found == [0] for found in met) else ["default"])}


@pytest.mark.promise(10)
@pytest.mark.parametrize("case", PATH_CASES, ids=[case.name for case in PATH_CASES])
def test_each_spelling_of_a_path_gets_the_expected_limits(case: PathCase) -> None:
    assert applies(case, [strip_root("", case.path)]) == case.applies  # as in WSGI
    if case.path.startswith("/") or not case.path:
        assert applies(case, [strip_root(case.root, case.root + case.path)]) == case.applies  # as in ASGI


@pytest.mark.promise(10)
@pytest.mark.parametrize("case", WHOLE_PATH_CASES, ids=[case.name for case in WHOLE_PATH_CASES])
def test_each_spelling_of_a_path_with_a_root_gets_the_expected_limits(case: PathCase) -> None:
    assert applies(case, AsgiRequest({"root_path": case.root, "path": case.path}, None).paths) == case.applies


FORMS = [  # readings of a path; its forms for templates as written, and those for normalized templates
    (["/a/b"], ["/a/b"], ["/a/b"]),
    (["/a/"], ["/a/"], ["/a"]),
    (["//a/../b/"], ["//a/../b/", "//a/../b", "/a/../b/"], ["/b", "/a/../b"]),
    (["/a//b/"], ["/a//b/", "/a//b"], ["/a/b"]),
    (["/a//"], ["/a//", "/a/"], ["/a"]),
    (["/a//../b"], ["/a//../b"], ["/b", "/a/../b"]),
    (["/a/\n"], ["/a/\n", "/a/"], ["/a", "/a/\n"]),
    (["//a//b\n"], ["//a//b\n", "/a//b\n", "//a//b", "/a//b"], ["/a/b", "/a/b\n"]),
    (["a"], ["a", "/a"], ["/a"]),
    (["/", "//"], ["/", "//"], ["/"]),
    (["/a\ufffd", "/a"], ["/a\ufffd", "/a"], ["/a\ufffd", "/a"]),
]


@pytest.mark.promise(10)
@pytest.mark.parametrize(("readings", "received", "normal"), FORMS)
def test_forms_contain_the_received_and_the_normalized_paths(
    readings: list[str], received: list[str], normal: list[str]
) -> None:
    forms = Forms.of(readings)
    assert ([*forms.received], [*forms.normal]) == (received, normal)


@pytest.mark.parametrize("path", ["/", "/login", "/a/b.c/..d/1%20", "/caf\u00e9"])
def test_a_plain_path_has_one_form(path: str) -> None:
    forms = Forms.of([path])
    assert forms.received is forms.normal
    assert [*forms.received] == [path]


def test_path_cases_are_distinct() -> None:
    assert len({case.name for case in PATH_CASES}) == len(PATH_CASES)
    assert len({case[1:] for case in PATH_CASES}) == len(PATH_CASES)


@pytest.mark.promise(10)
@pytest.mark.parametrize("part", ["/a", "/", "/.", "/..", "/a/..", "/" + "a" * 100, "\n", "/{", "a/./", "..//", "1"])
def test_long_paths_are_matched_without_backtracking(part: str) -> None:
    path = part * 100_000  # with backtracking, this would not end
    templates = ["/{a}/{b}/{c}", "/{rest:path}/end", "/{id:int}", "/{n:float}/x", "/{id:uuid}", "/a/{x}/", "/x{a}$$$"]
    paths = Paths("path", templates)
    assert not paths.match(path + "$", normal=False)
    normal = normal_path(path + "$")
    assert not any(one == two == "/" for one, two in pairwise(normal))
    assert paths.match(normal, normal=True) == (normal == "/a/..$")


def lookup_calls(index: PathTree, path: str) -> int:
    """Return how many functions one look-up calls."""
    return function_calls(lambda: index.matching_rules(path))


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/r{}", "/r4"),
        ("/r{}/{{id}}", "/r4/7"),
        ("/{{tenant}}/api/r{}/{{id:int}}", "/acme/api/r4/7"),
        ("/r{}/{{rest:path}}", "/r4/a/b/c"),
        ("/{{rest:path}}/r{}", "/a/b/c/r4"),
    ],
)
def test_a_lookup_makes_as_many_calls_with_500_rules_as_with_5(template: str, path: str) -> None:
    few, many = (PathTree([(template.format(n), n) for n in range(count)]) for count in (5, 500))
    assert [*few.matching_rules(path)] == [*many.matching_rules(path)] == [4]
    assert lookup_calls(few, path) == lookup_calls(many, path)


LONG = "1" * 65_000
DEARLY = [  # 500 rules, and a path of 64 KB that as many rules as possible must examine
    ("/{{x:float}}-{}", f"/{LONG}-7"),
    ("/{}-{{x:int}}", f"/7-{LONG}"),
    ("/{{x:uuid}}{}", f"/{LONG}"),
    ("/{{a:int}}/{{b:float}}/r{}", f"/{LONG[:30_000]}/{LONG[:30_000]}/r7"),
    ("/{{p:path}}/{{x:float}}-{}", "/1" * 32_000 + "-7"),
    ("/{{x:int}}/{{p:path}}/r{}", "/1" * 32_000),
    ("/a{}{{p:path}}", "/a7" * 20_000),
]


@pytest.mark.promise(10)
@pytest.mark.parametrize(("template", "path"), DEARLY)
def test_no_path_makes_a_lookup_expensive(monkeypatch: pytest.MonkeyPatch, template: str, path: str) -> None:
    """The templates, not the path, bound the calls of a look-up and the characters that converters examine."""
    index = PathTree([(template.format(n), n) for n in range(500)])
    examined: list[int] = []

    def take(converter: str, text: str) -> int:
        examined.append(len(text))
        return match_level(converter, text)

    monkeypatch.setattr(path_index, "match_level", take)
    assert lookup_calls(index, path) < 500 * 20
    assert max(examined, default=0) <= 64


def test_a_lookup_passes_no_long_text_to_a_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    index = PathTree([(f"/{{x:float}}{'1' * n}", n) for n in range(1, 501)])
    monkeypatch.setattr(path_index, "match_level", lambda *_: pytest.fail("a long text was examined"))
    assert index.matching_rules("/" + LONG) == [~n for n in range(1, 501)]  # ~n: each may match, in some routers


def test_a_lookup_visits_each_matching_branch_once() -> None:
    templates = ["".join(parts) for parts in product(["/a", "/{x}"], repeat=8)]
    index = PathTree([(template, number) for number, template in enumerate(templates)])
    assert index.matching_rules("/a" * 8) == list(range(256))
    assert lookup_calls(index, "/a" * 8) < 3000


@pytest.mark.promise(10)
def test_a_lookup_stops_at_the_depth_of_the_templates() -> None:
    index = PathTree([("/a/{x}/c", 0), ("/{x}/{rest:path}/y/a", 1)])
    assert index.matching_rules("/a" * 1000) == []
    assert lookup_calls(index, "/a" * 1000) < 60


def test_matching_rules_are_listed_once_each_and_in_order() -> None:
    index = PathTree([("/a", 3), ("/{x}", 3), ("/{x:path}", 1), ("/{y}", 2), ("/b", 0)])
    assert [*index.matching_rules("/a")] == [1, 2, 3]
    assert [*index.matching_rules("/b")] == [0, 1, 2, 3]
    assert [*index.matching_rules("")] == [*PathTree([]).matching_rules("/")] == []


def test_a_leaf_has_the_rules_of_paths_that_go_on_from_above() -> None:
    index = PathTree([("/api/{rest:path}", 0), ("/api/a", 1)])
    found = [index.leaf(path) for path in ("/api/a", "/api/b", "/api", "/b")]
    assert [leaf and leaf.rules for leaf in found] == [(0, 1), (0,), (), ()]


COVERS = [  # earlier, later, whether the earlier matches every path of the later
    ("/a", "/a", True),
    ("/a", "/b", False),
    ("/a", "/A", False),
    ("/a", "/a/", False),
    ("/{a}/x", "/{b}/x", True),
    ("/{rest:path}", "/", True),
    ("/{rest:path}", "/a/{b}/{c:path}/d", True),
    ("/api/{rest:path}", "/api/a/{b}", True),
    ("/api/{rest:path}", "/api/", True),
    ("/api/{rest:path}", "/api", False),
    ("/api/{rest:path}", "/{x}/a", False),
    ("/api/{rest:path}/edit", "/api/{id}/{x}/edit", True),
    ("/api/{rest:path}/edit", "/api/{id}/view", False),
    ("/api/{rest:path}", "/api/v1/{rest:path}/edit", True),
    ("/api/v1/{rest:path}", "/api/{rest:path}", False),
    ("/{a}/{rest:path}", "/{rest:path}", False),
    ("/a{rest:path}", "/ab/c", True),
    ("/ab{rest:path}bc", "/abc", False),
    ("/ab{rest:path}bc", "/ab{x}bc", True),
    ("/ab{rest:path}bc", "/ab/x/y{z}bc", True),
    ("/ab{rest:path}bc", "/ab/xbc", True),
    ("/ab{rest:path}", "/a{x}", False),
    ("/{id}", "/a", True),
    ("/{id}", "/", False),
    ("/{id}", "/{n:int}", True),
    ("/{id}", "/{n:float}", True),
    ("/{id}", "/{n:uuid}.json", True),
    ("/{id}", "/{rest:path}", False),
    ("/{n:int}", "/{id}", False),
    ("/{n:int}", "/12", True),
    ("/{n:int}", "/12a", False),
    ("/{n:float}", "/{n:int}", True),
    ("/{n:int}", "/{n:float}", False),
    ("/{n:uuid}", f"/{UUID}", True),
    ("/{n:uuid}", "/{m:uuid}", True),
    ("/x{n:int}", "/{m:int}", False),
    ("/x{id}.js", "/xy{n:int}.min.js", True),
    ("/x{id}.js", "/x{n:int}", False),
    ("/x{id}.js", "/y{n:int}.js", False),
    ("/x{id}.js", "/x.js", False),
]


@pytest.mark.parametrize(("earlier", "later", "expected"), COVERS)
def test_covers_detects_whether_one_template_matches_all_paths_of_another(
    earlier: str, later: str, *, expected: bool
) -> None:
    assert covers(earlier, later) is expected
    assert covers(earlier.replace("js", "JS"), later, ignore_case=True) is (
        expected or (earlier, later) == ("/a", "/A")
    )


def test_exempt_paths_are_case_sensitive() -> None:
    paths = Paths("exempt", "/Health")
    assert (paths.match("/Health", normal=True), paths.match("/health", normal=True)) == (True, False)


STYLE = "'{id}' or '{id:int}' as parameter"
STAR = "'{rest:path}' for all that follows, '{name}' for one segment"
QUERY = "a path without ? and #; the query is not part of it"
DECODED = "the character itself, such as a space for '%20'; paths are matched decoded"
CONTROL = "a path without control characters"
ENDS = "a path without white space at its ends"
START = "a path that starts with /, such as '/users/{id}'"
BRACES = "'{name}' or '{name:path}' as parameter"
ONE_EACH = "at most one parameter between two slashes, and at most one {name:path}"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("template", "allowed"),
    [
        ("/users/<id>", STYLE),
        ("/users/<int:id>/x", STYLE),
        ("/users/(?P<id>[0-9]+)", STYLE),
        ("/users/:id", STYLE),
        ("/:id/x", STYLE),
        ("/api/*", STAR),
        ("/api/**", STAR),
        ("/api/*/x", STAR),
        ("/api*", STAR),
        ("/api/{id}*", STAR),
        ("/files/*.js", STAR),
        ("/users/.*", STAR),
        ("/a?b=c", QUERY),
        ("/a?", QUERY),
        ("/a#b", QUERY),
        ("/a%20b", DECODED),
        ("/caf%C3%a9", DECODED),
        ("/login ", ENDS),
        (" /login", ENDS),
        ("/login\u00a0", ENDS),
        ("/a\n", CONTROL),
        ("/a\x00b", CONTROL),
        ("/a\x85b", CONTROL),
        ("http://example.org/a", START),
        ("a", START),
        ("", START),
        (5, START),
        ("/{id:[0-9]+}", BRACES),
        ("/{path...}", BRACES),
        ("/{*path}", BRACES),
        ("/{a}-{b}", ONE_EACH),
        ("/{a:path}/b/{c:path}", ONE_EACH),
    ],
)
def test_templates_that_match_nothing_or_slowly_are_config_errors(template: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Paths("path", ["/", template])
    assert str(caught.value) == f"path[1]: got {template!r}, expected {allowed}"


@pytest.mark.parametrize(
    "template",
    ["/v1/things:batch", "/v1/{id}:batch", "/:", "/a:1/:1", "/100%", "/100%{x}", "/a*b", "/a<b", "/a b", "/é"],
)
def test_templates_that_only_resemble_invalid_ones_are_allowed(template: str) -> None:
    assert Paths("path", template).match(template.replace("{x}", "1").replace("{id}", "1"), normal=False)
