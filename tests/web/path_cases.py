"""Spellings of a path, and the limits that must apply to each. The rows are replayed on `Paths`, over ASGI and WSGI.

The settings of a row are default limits, and one rule with the template (or `exempt` with it). A name that begins with
an advisory is a spelling that bypassed the limits of another project.
"""

from typing import Final, NamedTuple


class PathCase(NamedTuple):
    """A spelling of a path, and the limits that apply to it.

    `path`: the path below `root`, decoded once by the server. ASGI's `path` is `root` + `path`; WSGI's PATH_INFO is
    `path` as UTF-8 bytes. `applies`: empty if the path is exempt.
    """

    name: str
    template: str
    root: str  # root_path, SCRIPT_NAME
    path: str
    applies: frozenset[str]
    exempt: bool = False  # the template is one of `exempt`, and there is no rule
    ignore_case: bool = False


RULE: Final = frozenset({"rule"})
DEFAULT: Final = frozenset({"default"})
BOTH: Final = RULE | DEFAULT
NONE: Final[frozenset[str]] = frozenset()

PLAIN = [
    PathCase("the path itself", "/login", "", "/login", RULE),
    PathCase("another path", "/login", "", "/logout", DEFAULT),
    PathCase("below it", "/login", "", "/login/x", DEFAULT),
    PathCase("above it", "/login", "", "/", DEFAULT),
    PathCase("a word that begins with it", "/login", "", "/loginx", DEFAULT),
    PathCase("a dot is a dot", "/a.b", "", "/axb", DEFAULT),
    PathCase("a colon inside a segment", "/v1/things:batch", "", "/v1/things:batch", RULE),
    PathCase("a rule for a slash at the end", "/login/", "", "/login/", RULE),
    PathCase("that rule, without the slash", "/login/", "", "/login", BOTH),
    PathCase("that rule, with two", "/login/", "", "/login//", BOTH),
    PathCase("a rule for a double slash", "/a//b", "", "/a//b", RULE),
    PathCase("that rule, with one slash", "/a//b", "", "/a/b", BOTH),
    PathCase("empty is the root", "/", "", "", RULE),
    PathCase("empty is not another path", "/login", "", "", DEFAULT),
    PathCase("steemit/wallet 319: each guess is one rule", "/verify/{code}", "", "/verify/123456", RULE),
]
SLASHES_AND_DOTS = [
    PathCase("GHSA-x732-6j76-qmhm: // in front", "/sign-in/email", "", "//sign-in/email", BOTH),
    PathCase("GHSA-x732-6j76-qmhm: // inside", "/sign-in/email", "", "/sign-in//email", BOTH),
    PathCase("GHSA-24q2-59hm-rh9r: a slash at the end", "/admin/login", "", "/admin/login/", BOTH),
    PathCase("CVE-2025-29914: what could be a host after //", "/x/up.php", "", "//x/up.php", BOTH),
    PathCase("CVE-2025-29914: a host that hides the path", "/up.php", "", "//x/up.php", DEFAULT),
    PathCase("three slashes", "/login", "", "///login", BOTH),
    PathCase("/./ in front", "/login", "", "/./login", BOTH),
    PathCase("/. at the end", "/login", "", "/login/.", BOTH),
    PathCase("/../ from another path", "/login", "", "/x/../login", BOTH),
    PathCase("// in front and /../, as Flask reads it", "/search/{q:path}", "", "//search/../secret", BOTH),
    PathCase("// inside and /../, as Litestar reads it", "/search/all/{q:path}", "", "/search//all/../../x", BOTH),
    PathCase("/../ above the root", "/login", "", "/../../login", BOTH),
    PathCase("/../ over an empty segment", "/login", "", "/x//../login", BOTH),
    PathCase("/.. at the end leaves the rule", "/login", "", "/login/..", DEFAULT),
    PathCase("there and back", "/login", "", "/login/../login", BOTH),
    PathCase("a dot at the end", "/login", "", "/login.", DEFAULT),
    PathCase("three dots are a name", "/login", "", "/.../login", DEFAULT),
    PathCase("%2F, decoded", "/a/b", "", "/a/b", RULE),
    PathCase("%2F in a parameter, decoded", "/users/{id}", "", "/users/7/8", DEFAULT),
    PathCase("%252e%252e, decoded once", "/login", "", "/%2e%2e/login", DEFAULT),
    PathCase("%256c, decoded once", "/login", "", "/%6cogin", DEFAULT),
    PathCase("a backslash in front", "/login", "", "\\login", DEFAULT),
    PathCase("a backslash for a slash", "/a/b", "", "/a\\b", DEFAULT),
    PathCase("dots and a backslash", "/login", "", "/x/..\\login", DEFAULT),
]
ODD_LETTERS = [
    PathCase("a newline at the end", "/login", "", "/login\n", BOTH),
    PathCase("newlines and a slash at the end", "/login", "", "/login\n\n/", BOTH),
    PathCase("a newline inside", "/login", "", "/lo\ngin", DEFAULT),
    PathCase("a carriage return at the end", "/login", "", "/login\r", DEFAULT),
    PathCase("NUL at the end", "/login", "", "/login\0", DEFAULT),
    PathCase("NUL inside", "/login", "", "/login\0/x", DEFAULT),
    PathCase("a space at the end", "/login", "", "/login ", DEFAULT),
    PathCase("matrix parameters", "/login", "", "/login;jsessionid=1", DEFAULT),
    PathCase("matrix parameters in a parameter", "/users/{id}", "", "/users/7;x=1", RULE),
    PathCase("dots behind matrix parameters", "/login", "", "/x;/../login", BOTH),
    PathCase("%3F, decoded", "/login", "", "/login?x", DEFAULT),
    PathCase("%23, decoded", "/login", "", "/login#x", DEFAULT),
    PathCase("PYSEC-2026-248: no slash in front", "/login", "", "@google.com", DEFAULT),
    PathCase("no slash in front", "/login", "", "login", BOTH),
    PathCase("OPTIONS *", "/{rest:path}", "", "*", BOTH),
    PathCase("bytes that are no UTF-8, replaced", "/login", "", "/login\ufffd", DEFAULT),
    PathCase("another way to compose a letter", "/caf\u00e9", "", "/cafe\u0301", DEFAULT),
    PathCase("not ASCII", "/caf\u00e9/{x}", "", "/caf\u00e9/\u6771", RULE),
    PathCase("a wide letter", "/login", "", "/\uff4cogin", DEFAULT),
    PathCase("a wide slash", "/login", "", "\uff0flogin", DEFAULT),
    PathCase("a space without width", "/login", "", "/log\u200bin", DEFAULT),
    PathCase("very many slashes", "/login", "", "/login" + "/" * 5000, BOTH),
    PathCase("very many dots", "/login", "", "/x/.." * 2000 + "/login", BOTH),
    PathCase("a very long segment", "/users/{id}", "", "/users/" + "7" * 50_000, RULE),
    PathCase("a very long path", "/login", "", "/login" + "/x" * 5000, DEFAULT),
]
CASE = [
    PathCase("GHSA-24q2-59hm-rh9r: /admin/Login, exactly", "/admin/login", "", "/admin/Login", DEFAULT),
    PathCase("GHSA-24q2-59hm-rh9r: /admin/Login", "/admin/login", "", "/admin/Login", RULE, ignore_case=True),
    PathCase("GHSA-24q2-59hm-rh9r: Login and slash", "/admin/login", "", "/admin/Login/", BOTH, ignore_case=True),
    PathCase("CVE-2026-27587: %41dmin, decoded", "/admin", "", "/Admin", RULE, ignore_case=True),
    PathCase("the template in upper case", "/Login", "", "/login", RULE, ignore_case=True),
    PathCase("text around a parameter", "/Files/{n:int}.JSON", "", "/files/7.json", RULE, ignore_case=True),
    PathCase("a dotless i", "/login", "", "/log\u0131n", RULE, ignore_case=True),
    PathCase("an I with a dot", "/login", "", "/LOG\u0130N", RULE, ignore_case=True),
    PathCase("a long s", "/sign-in", "", "/\u017fign-in", RULE, ignore_case=True),
    PathCase("the Kelvin sign", "/key", "", "/\u212aey", RULE, ignore_case=True),
    PathCase("sigma at the end", "/\u03bf\u03b4\u03bf\u03c2", "", "/\u039f\u0394\u039f\u03a3", RULE, ignore_case=True),
    PathCase("other letters stay others", "/login", "", "/l\u00f6gin", DEFAULT, ignore_case=True),
]
PARAMETERS = [
    PathCase("int", "/items/{id:int}", "", "/items/007", RULE),
    PathCase("int with a sign", "/items/{id:int}", "", "/items/+1", BOTH),
    PathCase("int below zero", "/items/{id:int}", "", "/items/-5", BOTH),
    PathCase("int with an underscore", "/items/{id:int}", "", "/items/5_0", BOTH),
    PathCase("int in spaces", "/items/{id:int}", "", "/items/ 5\t", BOTH),
    PathCase("int with a fraction of zero", "/items/{id:int}", "", "/items/5.0", BOTH),
    PathCase("int of a hundred digits", "/items/{id:int}", "", "/items/" + "5" * 100, BOTH),
    PathCase("no int", "/items/{id:int}", "", "/items/5-0", DEFAULT),
    PathCase("float with an exponent", "/items/{x:float}", "", "/items/-1e5", BOTH),
    PathCase("float that is no number", "/items/{x:float}", "", "/items/nan", BOTH),
    PathCase("no float", "/items/{x:float}", "", "/items/1.5.2", DEFAULT),
    PathCase("uuid in braces", "/items/{x:uuid}", "", f"/items/{{{'12' * 16}}}", BOTH),
    PathCase("uuid as a URN", "/items/{x:uuid}", "", f"/items/urn:uuid:{'12' * 16}", BOTH),
    PathCase("int and text, with a newline", "/r-{n:int}.json/x", "", "/r-5.json\n/x", BOTH),
    PathCase("int of other digits", "/items/{id:int}", "", "/items/\u0667", RULE),
    PathCase("int and a newline", "/items/{id:int}", "", "/items/1\n", BOTH),
    PathCase("int and a slash", "/items/{id:int}", "", "/items/1/", BOTH),
    PathCase("an empty parameter", "/users/{id}", "", "/users/", DEFAULT),
    PathCase("a parameter and an ending", "/files/{name}.json", "", "/files/a.b.json", RULE),
    PathCase("the ending alone", "/files/{name}.json", "", "/files/.json", DEFAULT),
    PathCase("the ending and a slash", "/files/{name}.json", "", "/files/a.json/", BOTH),
    PathCase("a parameter of dots", "/users/{id}", "", "/users/..", BOTH),
    PathCase("the rest, one segment", "/api/{rest:path}", "", "/api/x", RULE),
    PathCase("the rest, empty", "/api/{rest:path}", "", "/api/", BOTH),
    PathCase("the rest, without its slash", "/api/{rest:path}", "", "/api", DEFAULT),
    PathCase("the rest, // inside", "/api/{rest:path}", "", "/api//x", RULE),
    PathCase("the rest, // in front", "/api/{rest:path}", "", "//api/x", BOTH),
    PathCase("the rest, left by dots", "/api/{rest:path}", "", "/api/../admin", BOTH),
    PathCase("the rest, reached by dots", "/api/{rest:path}", "", "/x/../api/y", BOTH),
    PathCase("the rest, with a newline", "/api/{rest:path}", "", "/api/x\ny", RULE),
    PathCase("the rest between", "/files/{rest:path}/edit", "", "/files/a/b/edit", RULE),
    PathCase("the rest between, empty", "/files/{rest:path}/edit", "", "/files//edit", BOTH),
    PathCase("the rest between, empty, and a newline", "/files/{rest:path}/edit", "", "/files//edit\n", BOTH),
    PathCase("the rest between, left out", "/files/{rest:path}/edit", "", "/files/edit", DEFAULT),
    PathCase("all paths", "/{rest:path}", "", "//", RULE),
]
ROOTS = [
    PathCase("below the root", "/login", "/sub", "/login", RULE),
    PathCase("below a deep root", "/login", "/sub/two", "/login", RULE),
    PathCase("the root itself", "/", "/sub", "", RULE),
    PathCase("the root and a slash", "/", "/sub", "/", RULE),
    PathCase("the root's name again", "/login", "/sub", "/sub/login", DEFAULT),
    PathCase("a template with the root in it", "/sub/login", "/sub", "/login", DEFAULT),
    PathCase("// below the root", "/login", "/sub", "//login", BOTH),
    PathCase("/../ does not leave the root", "/login", "/sub", "/../login", BOTH),
    PathCase("an exemption below the root", "/health", "/sub", "/health", NONE, exempt=True),
    PathCase("an exemption of the root's name again", "/health", "/sub", "/sub/health", DEFAULT, exempt=True),
]
EXEMPT = [
    PathCase(f"exempt {name}", template, "", path, applies, exempt=True)
    for name, template, path, applies in [
        ("itself", "/health", "/health", NONE),
        ("and a slash", "/health", "/health/", DEFAULT),
        ("GHSA-x732-6j76-qmhm turned round", "/health", "//health", DEFAULT),
        ("reached by dots", "/health", "/login/../health", DEFAULT),
        ("and a dot", "/health", "/health/.", DEFAULT),
        ("and a newline", "/health", "/health\n", DEFAULT),
        ("and NUL", "/health", "/health\0", DEFAULT),
        ("and matrix parameters", "/health", "/health;/login", DEFAULT),
        ("in another case", "/health", "/Health", DEFAULT),
        ("with a dotless i", "/login", "/log\u0131n", DEFAULT),
        ("without a slash in front", "/health", "health", DEFAULT),
        ("as a whole URL", "/health", "http://x/health", DEFAULT),
        ("root, empty", "/", "", NONE),
        ("root, twice", "/", "//", DEFAULT),
        ("with a slash", "/up/", "/up/", NONE),
        ("with a slash left out", "/up/", "/up", DEFAULT),
        ("files", "/static/{path:path}", "/static/a/b.css", NONE),
        ("files, // inside", "/static/{path:path}", "/static//a", NONE),
        ("files, none", "/static/{path:path}", "/static/", DEFAULT),
        ("files, left by dots", "/static/{path:path}", "/static/../login", DEFAULT),
        ("files, left by dots further in", "/static/{path:path}", "/static/a/../../login", DEFAULT),
        ("files, left and back", "/static/{path:path}", "/static/../static/a", NONE),
        ("files, reached by dots", "/static/{path:path}", "/login/../static/a", DEFAULT),
        ("files, dots decoded once", "/static/{path:path}", "/static/%2e%2e/login", NONE),
        ("parameter of dots", "/public/{name}", "/public/..", DEFAULT),
        ("int with a sign", "/items/{id:int}", "/items/+1", DEFAULT),
        ("files, // in front and dots", "/static/{path:path}", "//static/../static/a", DEFAULT),
    ]
]
PATH_CASES = [*PLAIN, *SLASHES_AND_DOTS, *ODD_LETTERS, *CASE, *PARAMETERS, *ROOTS, *EXEMPT]

# Cases that are possible only with ASGI: here `path` is the scope's whole `path`, which may be outside of `root`.
WHOLE_PATH_CASES = [
    PathCase("the root in front", "/login", "/sub", "/sub/login", RULE),
    PathCase("a server that leaves the root out", "/login", "/sub", "/login", RULE),
    PathCase("the root alone", "/", "/sub", "/sub", RULE),
    PathCase("a word that begins with the root", "/subway", "/sub", "/subway", BOTH),
    PathCase("a word behind the root", "/login", "/sub", "/sublogin", BOTH),
    PathCase("the root further in", "/login", "/sub", "/x/sub/login", BOTH),
    PathCase("a whole URL", "/login", "", "http://x/login", BOTH),
    PathCase("a whole URL with the root", "/login", "/sub", "http://x/sub/login;x?y", BOTH),
    PathCase("what looks like a whole URL", "/login", "", "http://[/login", DEFAULT),
    PathCase("the root twice", "/login", "/sub", "/sub/sub/login", DEFAULT),
    PathCase("the root in another case", "/login", "/sub", "/Sub/login", DEFAULT),
    PathCase("// before the root", "/login", "/sub", "//sub/login", BOTH),
    PathCase("// behind the root", "/login", "/sub", "/sub//login", BOTH),
    PathCase("dots behind the root", "/login", "/sub", "/sub/../login", BOTH),
    PathCase("a root with a slash at its end", "/login", "/sub/", "/sub/login", BOTH),
    PathCase("an exemption that the root does not reach", "/health", "/sub", "/sub/../health", DEFAULT, exempt=True),
]
