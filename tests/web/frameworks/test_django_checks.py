"""The issues that `manage.py check` reports, in its own process."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from message_codes import plain
from ratelimit_mw.django import checks as django_checks

PROJECT = """
SECRET_KEY = "x"
ROOT_URLCONF = "urls"
WSGI_APPLICATION = "served.application"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [{installed}]
MIDDLEWARE = [{middleware}]
{more}
"""
URLS = """
from django.http import HttpResponse
from django.urls import path

def hello(request):
    return HttpResponse("hello")

urlpatterns = [path("", hello)]
"""
MARKED = """
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw.django import limit

@limit("5/minute")
def hello(request):
    return HttpResponse("hello")

urlpatterns = [path("", hello)]
"""
HIDDEN = """
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw.django import limit

def hiding(view):
    return lambda request: view(request)

@hiding
@limit("5/minute")
def hello(request):
    return HttpResponse("hello")

@limit("5/minute")
def bye(request):
    return HttpResponse("bye")

urlpatterns = [path("", hello), path("bye", bye)]
"""
FOREIGN = """
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw import AsyncLimiter, Limiter
from ratelimit_mw.django import limit
from ratelimit_mw.starlette import limit as foreign

@foreign("5/minute")
def hello(request):
    return HttpResponse("hello")

@AsyncLimiter().limit("5/minute")
async def bye(request):
    return HttpResponse("bye")

@Limiter().limit("5/minute", key=lambda request: "all")
def meant(request):
    return HttpResponse("meant")

@limit("5/minute")
@Limiter().limit("5/minute")
def both(request):
    return HttpResponse("both")

urlpatterns = [path("a", hello), path("b", bye), path("c", bye), path("d", meant), path("e", both)]
"""
THROTTLED = """
from django.urls import path
from rest_framework.views import APIView

from ratelimit_mw.django import Throttle

class Hello(APIView):
    throttle_classes = [Throttle]
    throttle_scope = "missing"

urlpatterns = [path("", Hello.as_view())]
"""
UNSCOPED = """
from django.urls import path
from rest_framework.views import APIView

from ratelimit_mw.django import Throttle

class T(Throttle):
    pass

class Usual(APIView):
    pass

class Own(APIView):
    throttle_classes = [T]

urlpatterns = [path("", Usual.as_view()), path("own", Own.as_view())]
"""
WEAK = """
from django.http import HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from ratelimit_mw.django import limit

@limit("5/minute", cost=0)
def free(request):
    return HttpResponse("free")

@limit({"basic": "5/minute"}, tier="ip")
def tiers(request):
    return HttpResponse("by tier")

@method_decorator(limit("9/minute", key="ip", name="outer"), "dispatch")
class Hello(View):
    @limit("5/minute", key="header:y", name="hello")
    def get(self, request):
        return HttpResponse("hello")

inner = [path("<int:number>", limit("5/minute", key="header:x")(lambda request, number: HttpResponse("in")))]
urlpatterns = [path("free", free), path("tiers", tiers), path("hello", Hello.as_view()), path("in/", include(inner))]
"""
SERVED = "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
OURS = "ratelimit_mw.django.RateLimitMiddleware"
AUTH = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
RIGHT = 'RATELIMIT_MW = {"limits": "9/minute", "key": "ip"}'
WRONG = 'RATELIMIT_MW = {"limits": "9/minut", "headers": "all", "on_refused": 7}'
APP = "ratelimit_mw.django"


def project(folder: Path, more: str, *middleware: str, urls: str = URLS, installed: tuple[str, ...] = (APP,)) -> Path:
    words = {"installed": repr(list(installed))[1:-1], "middleware": repr(list(middleware))[1:-1], "more": more}
    for name, text in (("settings", PROJECT.format(**words)), ("urls", urls), ("served", SERVED)):
        folder.joinpath(f"{name}.py").write_text(text, "utf-8")
    return folder


def manage(folder: Path, command: str, *options: str) -> Any:
    where = ["--settings", "settings", "--pythonpath", str(folder)]
    line = [sys.executable, "-m", "django", command, *where, *options]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder, timeout=300)


def told(done: Any) -> list[tuple[str, str]]:
    """Return the id and the first line of each reported issue."""
    return re.findall(r"\?: \(ratelimit_mw\.([EW]\d{3})\) (.*)", plain(done.stderr))


def test_correct_project_has_no_issues(tmp_path: Path) -> None:
    done = manage(project(tmp_path, RIGHT, OURS, urls=MARKED), "check", "--fail-level", "INFO")
    assert (done.returncode, told(done)) == (0, [])
    assert "no issues" in done.stdout


@pytest.mark.promise(9)
def test_every_mistake_is_reported(tmp_path: Path) -> None:
    done = manage(project(tmp_path, WRONG, OURS), "check")
    assert done.returncode == 1
    found = told(done)
    assert [kind for kind, _ in found] == ["E001"] * 3
    assert [text.split(": ")[0] for _, text in found] == [
        "RATELIMIT_MW.headers",
        "RATELIMIT_MW.limits",
        "RATELIMIT_MW.on_refused",
    ]
    assert "HINT: The server does not start with it." in done.stderr


@pytest.mark.promise(9)
def test_without_the_installed_app_only_the_server_start_finds_mistakes(tmp_path: Path) -> None:
    where = project(tmp_path, WRONG, OURS, installed=())
    assert manage(where, "check").returncode == 0
    served = manage(where, "runserver", "--noreload", "127.0.0.1:0")
    assert served.returncode == 1
    assert "RATELIMIT_MW.limits: '9/minut': unknown period 'minut', did you mean 'minute'?" in served.stderr


@pytest.mark.promise(9)
@pytest.mark.parametrize("urls", [URLS, MARKED], ids=["settings", "settings and limits on views"])
def test_limits_without_the_middleware_are_reported(tmp_path: Path, urls: str) -> None:
    found = told(manage(project(tmp_path, RIGHT, urls=urls), "check"))
    texts = ["RATELIMIT_MW is set, but RateLimitMiddleware is not in MIDDLEWARE: its limits are not enforced."]
    if urls == MARKED:
        where = tmp_path / "urls.py"
        texts.append(f"1 limits on views ({where}:7) are not enforced: add {OURS} to MIDDLEWARE")
    assert sorted(found, key=lambda pair: pair[1], reverse=True) == [("W001", text) for text in texts]


def test_limits_on_views_without_settings_and_middleware_are_reported(tmp_path: Path) -> None:
    found = told(manage(project(tmp_path, "", urls=MARKED), "check"))
    assert [kind for kind, _ in found] == ["W001"]


def test_a_limit_that_a_decorator_hides_is_reported(tmp_path: Path) -> None:
    found = told(manage(project(tmp_path, RIGHT, OURS, urls=HIDDEN), "check"))
    assert found == [("W003", f"The limit at {tmp_path / 'urls.py'}:11 is not on any view of the URLs.")]


def test_decorators_for_other_frameworks_are_reported(tmp_path: Path) -> None:
    found = told(manage(project(tmp_path, RIGHT, OURS, urls=FOREIGN), "check"))
    foreign = "/a: the limit on hello is by the decorator for another framework; use limit of ratelimit_mw.django"
    assert found == [("E003", foreign)]


@pytest.mark.parametrize(
    ("key", "middleware", "ids"),
    [
        ("user | ip", (OURS, SESSIONS, AUTH), ["W002"]),
        ("ip", (OURS, SESSIONS, AUTH), []),
        ("user | ip", (SESSIONS, AUTH, OURS), []),
        ("user | ip", (OURS,), []),
        ("user", (OURS,), ["W002"]),
    ],
)
def test_middleware_that_cannot_know_the_user_of_its_key_is_reported(
    tmp_path: Path, key: str, middleware: tuple[str, ...], ids: list[str]
) -> None:
    more = f"RATELIMIT_MW = {{'limits': '9/minute', 'key': {key!r}}}"
    installed = (APP, "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions")
    where = project(tmp_path, more, *middleware, installed=installed)
    assert [kind for kind, _ in told(manage(where, "check"))] == ids


def test_middleware_listed_twice_is_reported(tmp_path: Path) -> None:
    done = manage(project(tmp_path, RIGHT, OURS, SESSIONS, OURS), "check")
    assert told(done) == [
        ("W005", "RateLimitMiddleware is in MIDDLEWARE more than once: each decides and charges every request.")
    ]
    assert f"Remove {OURS!r}." in done.stderr


UNREACHED = """
RATELIMIT_MW = {{
    "limits": "9/minute",
    "key": "ip",
    "strict": {},
    "rules": [{{"path": "/{{rest:path}}", "limits": "5/minute", "name": "all"}},
              {{"path": "/", "limits": "1/minute", "name": "a"}}],
}}
"""


@pytest.mark.promise(9)
@pytest.mark.parametrize("strict", [False, True])
def test_startup_warnings_are_reported_as_issues(tmp_path: Path, strict: bool) -> None:
    """The warnings are reported as issues, not as log lines between issues."""
    done = manage(project(tmp_path, UNREACHED.format(strict), OURS), "check")
    begins = "rules[1] (a) can never match: rules[0] (all) is final"
    ((kind, text),) = told(done)
    assert (done.returncode, kind) == ((1, "E001") if strict else (0, "W006"))
    assert text.startswith(f"RATELIMIT_MW.{begins}" if strict else begins)
    assert done.stderr.count("can never match") == 1
    assert "[RL-116]" in done.stderr

    other = RIGHT.replace("}", f', "strict": {strict}}}') + '\nRATELIMIT_DEFAULT = "5/minute"'
    done = manage(project(tmp_path, other, OURS), "check")
    ((kind, text),) = told(done)
    assert (done.returncode, kind) == (int(strict), "W006")
    assert text.startswith("RATELIMIT_DEFAULT is not read here; write `limits` into RATELIMIT_MW: text such as")
    assert "[RL-111]" in done.stderr


@pytest.mark.parametrize("strict", [False, True])
def test_websocket_messages_option_is_reported(tmp_path: Path, strict: bool) -> None:
    own = RIGHT.replace("}", f', "messages": "1/second", "strict": {strict}}}')
    done = manage(project(tmp_path, own, OURS), "check")
    text = (
        "messages: the middleware of Django does not see messages of websockets, so they are not limited; limit them "
        "in the app, and remove this option"
    )
    expected = ("E001", f"RATELIMIT_MW.{text}") if strict else ("W006", text)
    assert (done.returncode, told(done)) == (int(strict), [expected])


@pytest.mark.parametrize("strict", [False, True])
def test_limit_problems_that_first_requests_log_are_reported(tmp_path: Path, strict: bool) -> None:
    rule = {"path": "/hello", "limits": {"pro": "5/minute"}, "tier": "ip"}
    own = {"limits": "9/minute", "key": "ip", "default_tier": "pro", "strict": strict, "rules": [rule]}
    where = project(tmp_path, f"RATELIMIT_MW = {own}", OURS, urls=WEAK)
    done = manage(where, "check")
    weak = [
        "@limit free: a limit with cost = 0 is never charged and never refuses; give it a cost of at least 1",
        (
            "@limit in_int_number: its key, header:x, is written by the client, which can use a new one for each "
            "request; add a limit with another key"
        ),
    ]
    shared = (
        "@limit hello: all clients without header:y share one bucket of its limit, so one of them can use it up for "
        "the others; set the key to header:y | ip, or set missing_key to exempt or deny"
    )
    unknown = "limits on /tiers: default_tier: got 'pro', expected one of basic"
    assert sorted(told(done)) == sorted(("W008", text) for text in [*weak, unknown, shared])
    assert done.stderr.count("ERRORS:") == done.returncode == int(strict)

    code = "import served; from django.test import Client; client = Client(headers={'X': '1', 'Y': '1'}); "
    code += "print([client.get(path).status_code for path in ('/free', '/hello', '/in/1', '/free')])"
    served = manage(where, "shell", "-c", code)
    assert "[200, 200, 200, 200]" in served.stdout
    logged = [line.removeprefix("ratelimit_mw: ") for line in plain(served.stderr).splitlines()]
    assert sorted(logged) == sorted([*weak, shared])


def test_a_rule_for_a_path_without_a_url_is_reported(tmp_path: Path) -> None:
    def rules(*paths: str) -> str:
        each = (f'{{"path": "{path}", "limits": "5/minute", "name": "r{number}"}}' for number, path in enumerate(paths))
        return f"[{', '.join(each)}]"

    own = 'RATELIMIT_MW = {"limits": "9/minute", "key": "ip", "strict": True, "rules": %s}'
    places = {name: tmp_path / name for name in ("known", "lost", "misspelled", "prefixed")}
    for place in places.values():
        place.mkdir()
    routes = ['path("bye", hello)', 'path("users/<int:number>/", hello)', 're_path("^odd/[0-9/]+$", hello)']
    routes.append('path("in/", include([path("<slug:name>/edit", hello)]))')
    urls = URLS.replace('path("", hello)', ", ".join(['path("", hello)', *routes]))
    urls = f"from django.urls import include, re_path\n{urls}"
    known = ["/", "/bye/", "/odd/{a}/{b}", "/users/{name}", "/in/{x}/edit", "/{any}/{rest:path}"]
    assert told(manage(project(places["known"], own % rules(*known), OURS, urls=urls), "check")) == []

    done = manage(project(places["lost"], own % rules("/lag", "/in/{x}/view"), OURS, urls=urls), "check")
    text = "rules[{}] (r{}): no route has the path {}, so the rule limits only requests that are answered with 404; "
    assert (done.returncode, told(done)) == (
        0,
        [
            ("W007", f"{text.format(number, number, path)}correct the path, if this is not meant")
            for number, path in enumerate(["/lag", "/in/{x}/view"])
        ],
    )
    done = manage(project(places["misspelled"], own % rules("/byee"), OURS, urls=urls), "check")
    assert (done.returncode, told(done)) == (
        1,
        [("W007", "rules[0] (r0): no route has the path /byee; did you mean /bye?")],
    )

    prefixed = urls.replace("urlpatterns = [", "urlpatterns = i18n_patterns(")[:-2] + ")\n"
    prefixed = "from django.conf.urls.i18n import i18n_patterns\n" + prefixed
    assert told(manage(project(places["prefixed"], own % rules("/byee"), OURS, urls=prefixed), "check")) == []


def test_exempt_paths_that_miss_the_route_at_their_root_are_reported(tmp_path: Path) -> None:
    """As the route `admin/` of Django's admin. The text shows it as settings have paths."""
    exempt = ["/admin", "/admin/{rest:path}", "/docs/{rest:path}"]
    own = f'RATELIMIT_MW = {{"limits": "9/minute", "key": "ip", "exempt": {exempt}}}'
    urls = "from django.urls import include\n" + URLS.replace(
        'path("", hello)', ", ".join(f'path("{name}/", include([path("", hello)]))' for name in ("admin", "docs"))
    )
    text = "exempt: /docs/{rest:path} does not match /docs/, which has a route and is limited; add /docs/, or give it "
    found = told(manage(project(tmp_path, own, OURS, urls=urls), "check"))
    assert found == [("W007", f"{text}a rule of its own, if this is meant")]


def test_a_throttle_without_a_rate_is_reported(tmp_path: Path) -> None:
    installed = (APP, "rest_framework", "django.contrib.auth", "django.contrib.contenttypes")
    done = manage(project(tmp_path, RIGHT, OURS, urls=THROTTLED, installed=installed), "check")
    text = "DEFAULT_THROTTLE_RATES: got no rate for 'missing', the scope of Throttle"
    assert (done.returncode, told(done)) == (1, [("E002", text)])


@pytest.mark.parametrize("strict", [False, True])
def test_throttles_that_throttle_nothing_are_reported(tmp_path: Path, strict: bool) -> None:
    """One throttle is in DEFAULT_THROTTLE_CLASSES, with a rate that no scope names. The other has no limits."""
    installed = (APP, "rest_framework", "django.contrib.auth", "django.contrib.contenttypes")
    more = (
        f"RATELIMIT_MW = {{'limits': '9/minute', 'key': 'ip', 'strict': {strict}}}\n"
        "REST_FRAMEWORK = {'DEFAULT_THROTTLE_CLASSES': ['ratelimit_mw.django.Throttle'],\n"
        "    'DEFAULT_THROTTLE_RATES': {'user': '1/day'}}\n"
    )
    done = manage(project(tmp_path, more, OURS, urls=UNSCOPED, installed=installed), "check")
    why = "it has neither `limits` nor `scope`, and the views have no `throttle_scope`."
    assert (done.returncode, told(done)) == (
        int(strict),
        [
            ("W004", f"ratelimit_mw.django.throttle.Throttle throttles nothing on urls.Usual: {why}"),
            ("W004", f"urls.T throttles nothing on urls.Own: {why}"),
        ],
    )
    assert "`throttle_scope` on the views, with a rate in DEFAULT_THROTTLE_RATES" in done.stderr


def test_documentation_lists_exactly_the_check_ids() -> None:
    ids = set(re.findall(r"ratelimit_mw\.([EW]\d{3})", Path(django_checks.__file__).read_text("utf-8")))
    page = Path(__file__).parents[3] / "docs/reference/messages.md"
    section = page.read_text("utf-8").partition("## System checks of Django")[2]
    assert set(re.findall(r"^\| `ratelimit_mw\.([EW]\d{3})` \|", section, re.MULTILINE)) == ids
