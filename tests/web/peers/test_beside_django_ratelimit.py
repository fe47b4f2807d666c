"""The code and the table of the page on django-ratelimit, run beside django-ratelimit: the answers are the same."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import getsource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.core.cache import cache
from django.core.cache.backends.base import BaseCache
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from werkzeug.test import Client

from ratelimit_mw import MemoryStore
from ratelimit_mw.django import limit
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer, free_port
from web.django_ask import keeping
from web.django_site import LOGIN, OURS, wsgi_site

TEXT = (Path(__file__).parents[3] / "docs/how-to/migrate-from-django-ratelimit.md").read_text("utf-8")
NOW = 1_800_000_000.0  # django-ratelimit counts in windows of the wall clock
Request = tuple[str, str, Mapping[str, str]]  # method, path, headers


class Away(BaseCache):
    """A cache that does not answer, as that of memcached."""

    def __init__(self, _location: str, params: Any) -> None:
        super().__init__(params)

    def add(self, *_: Any, **__: Any) -> bool:
        return False

    def incr(self, *_: Any, **__: Any) -> int:
        raise ValueError


class AwayStore(MemoryStore):
    def take(self, charges: Any) -> Any:
        raise OSError


def function_of_the_page() -> Callable[[Any], bool]:
    """Return `is_limited`, which the page shows in place of `request.limited`."""
    names: dict[str, Any] = {}
    code = re.search(r"^AWAY = .*?(?=\n\n\n@limit)", TEXT, re.MULTILINE | re.DOTALL)
    exec(code[0] if code else "", names)  # noqa: S102  # code of our own page
    found: Callable[[Any], bool] = names["is_limited"]
    return found


IS_LIMITED = function_of_the_page()


def told(request: Any) -> HttpResponse:
    """A view of both: whether the request is over a limit that does not refuse."""
    limited = IS_LIMITED(request) if hasattr(request, "ratelimit") else request.limited
    return HttpResponse(f"{request.method} {limited}")


class Told(View):
    def get(self, request: Any) -> HttpResponse:
        return told(request)


def copied(kind: type) -> Any:
    """Return a subclass, because a decorator changes the class."""
    return type("Copied", (kind,), {})


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The decorator of django-ratelimit. Other tests of this process read settings as without that package."""
    from django_ratelimit import core, decorators  # type: ignore[import-untyped]  # noqa: PLC0415  # see above

    monkeypatch.setattr(core, "time", SimpleNamespace(time=lambda: NOW))
    cache.clear()
    yield decorators.ratelimit
    for name in [name for name in sys.modules if name.partition(".")[0] == "django_ratelimit"]:
        del sys.modules[name]


class Row(NamedTuple):
    """A row of the table as programs. `theirs`: takes their decorator, and returns a view. `ours`: returns a view."""

    theirs: Callable[[Any], Any]
    ours: Callable[[], Any]
    requests: Sequence[Request] = (("GET", "/", {}),) * 4
    their_settings: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


FIXED = "2/h using fixed_window"
GETS: list[Request] = [("GET", f"/?page={page}", {}) for page in (1, 1, 1, 2)]
KEYS: list[Request] = [("GET", "/", {"X-Api-Key": key}) for key in "aabab"]
POSTS: list[Request] = [(method, "/", {}) for method in ("GET", "POST", "POST", "PUT", "GET", "POST", "DELETE")]
CAPTCHA = Row(
    lambda ratelimit: ratelimit(key="ip", rate="2/h", method=("DELETE", "PATCH", "POST", "PUT"), block=False)(told),
    lambda: limit(FIXED, methods=["DELETE", "PATCH", "POST", "PUT"], shadow=True)(keeping(told)),
    POSTS,
)
CACHE_AWAY = {"CACHES": {"default": {"BACKEND": f"{__name__}.Away"}}}

ROWS: Mapping[str, Row] = {
    '`rate="100/h"`, `"10/5m"`': Row(
        lambda ratelimit: ratelimit(key="ip", rate="2/5m")(told),
        lambda: limit("2/5m using fixed_window")(keeping(told)),
    ),
    '`rate="0/s"`': Row(
        lambda ratelimit: ratelimit(key="ip", rate="0/s")(told),
        lambda: limit("0/s")(keeping(told)),
    ),
    "`None`": Row(lambda ratelimit: ratelimit(key="ip", rate=lambda *_: None)(told), lambda: limit([])(keeping(told))),
    "`rate` as a callable": Row(
        lambda ratelimit: ratelimit(key="ip", rate=lambda _, __: "2/h")(told),
        lambda: limit(lambda _: FIXED)(keeping(told)),
    ),
    '`key="ip"`': Row(
        lambda ratelimit: ratelimit(key="header:x-api-key", rate="2/h")(told),
        lambda: limit(FIXED, key="header:x-api-key")(keeping(told)),
        KEYS,
    ),
    '`key="get:page"`': Row(
        lambda ratelimit: ratelimit(key="get:page", rate="2/h")(told),
        lambda: limit(FIXED, key=lambda request: request.raw.GET["page"])(keeping(told)),
        GETS,
    ),
    '`key="shop.keys.of"`': Row(
        lambda ratelimit: ratelimit(key=lambda _, request: request.GET["page"], rate="2/h")(told),
        lambda: limit(FIXED, key=lambda request: request.raw.GET["page"])(keeping(told)),
        GETS,
    ),
    '`method="POST"`': Row(
        lambda ratelimit: ratelimit(key="ip", rate="2/h", method="POST")(told),
        lambda: limit(FIXED, methods=["POST"])(keeping(told)),
        POSTS,
    ),
    "`group`": Row(
        lambda ratelimit: ratelimit(group="search", key="ip", rate="2/h")(told),
        lambda: limit(FIXED, name="search")(keeping(told)),
        [("GET", where, {}) for where in ("/", "/other", "/other", "/")],
    ),
    "several decorators": Row(
        lambda ratelimit: ratelimit(key="ip", rate="2/h")(ratelimit(key="ip", rate="3/d")(told)),
        lambda: limit(f"{FIXED}; 3/d using fixed_window")(keeping(told)),
    ),
    "`method_decorator": Row(
        lambda ratelimit: method_decorator(ratelimit(key="ip", rate="2/h"), name="dispatch")(copied(Told)).as_view(),
        lambda: method_decorator(limit(FIXED), name="dispatch")(copied(Told)).as_view(),
    ),
    "`block=False`": CAPTCHA,
    "`block=False`, the cache is away": CAPTCHA._replace(their_settings=CACHE_AWAY, settings={"store": AwayStore()}),
    "`block=False`, away, and allowed": CAPTCHA._replace(
        their_settings=CACHE_AWAY, settings={"store": AwayStore(), "on_store_error": "allow"}
    ),
    "`RATELIMIT_FAIL_OPEN": Row(
        lambda ratelimit: ratelimit(key="ip", rate="2/h")(told),
        lambda: limit(FIXED, on_store_error="deny")(keeping(told)),
        their_settings=CACHE_AWAY,
        settings={"store": AwayStore()},
    ),
    "`RATELIMIT_ENABLE`": CAPTCHA._replace(their_settings={"RATELIMIT_ENABLE": False}, settings={"enabled": False}),
}
# what has no answer to compare, or has another form here
NOT_COMPARED = (
    *("`Ratelimited`", "`RATELIMIT_CACHE_PREFIX`", "`RATELIMIT_IP_META_KEY`", "`RATELIMIT_IPV6_MASK`"),
    *("`RATELIMIT_HASH_ALGORITHM`", "`is_ratelimited`"),
)


def answers(view: Any, more: Any, limits: Any, requests: Sequence[Request], **settings: Any) -> list[str]:
    middleware = (LOGIN,) if limits is None else (LOGIN, OURS)
    client = Client(wsgi_site([path("", view), path("other", more)], limits, middleware, **settings))
    address = {"REMOTE_ADDR": "192.0.2.1"}
    found = [
        client.open(where, method=method, headers=dict(headers), environ_base=address)
        for method, where, headers in requests
    ]
    return [answer.text if answer.status_code == 200 else f"refused {answer.status_code}" for answer in found]


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_gives_the_same_answers(ratelimit: Any, name: str) -> None:
    row = ROWS[name]
    theirs = answers(row.theirs(ratelimit), row.theirs(ratelimit), None, row.requests, **row.their_settings)
    limits = {"limits": [], "store": MemoryStore(clock=Clock()), "key": "ip", **row.settings}
    ours = answers(row.ours(), row.ours(), limits, row.requests)
    assert [re.sub(r"refused (403|429|503)", "refused", answer) for answer in ours] == [
        answer.replace("refused 403", "refused") for answer in theirs
    ]
    assert len(set(theirs)) > 1 or name in ('`rate="0/s"`', "`None`", "`RATELIMIT_FAIL_OPEN")


def test_each_row_of_the_table_is_compared_or_has_no_answer() -> None:
    table = TEXT.partition("## Option by option")[2].partition("| cache |")[0]
    first = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][1:]
    known = (*(name.partition(",")[0] for name in ROWS), *NOT_COMPARED)
    assert [cell for cell in first if not cell.startswith(known)] == []


# the projects of the page

PROGRAM = """
import json, os, sys

sys.path.insert(0, ".")
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.wsgi import get_wsgi_application
from werkzeug.test import Client

client, client_address = Client(get_wsgi_application()), {"REMOTE_ADDR": "192.0.2.1"}
if sys.argv[2] == "theirs":
    from django_ratelimit import core
    from types import SimpleNamespace

    core.time = SimpleNamespace(time=lambda: 1_800_000_000.0)
answers = [
    client.open(where, method=method, headers=headers, environ_base=client_address)
    for method, where, headers in json.loads(sys.argv[1])
]
print(json.dumps([answer.text if answer.status_code == 200 else answer.status_code for answer in answers]))
"""
THEIR_SETTINGS = 'SECRET_KEY = "x"\nALLOWED_HOSTS = ["*"]\nROOT_URLCONF = "urls"\nMIDDLEWARE = []\n'
SENT: list[Request] = [
    *[("POST", "/login", {})] * 7,
    *[("GET", "/login", {})] * 2,
    *[("GET", "/articles", {})] * 101,
    *[("GET", where, {"X-Api-Key": "a"}) for where in ("/search", "/suggest")] * 6,
    *[("POST", "/comments", {})] * 31,
    ("GET", "/comments", {}),
]


def run(folder: Path, files: Mapping[str, str], requests: Sequence[Request], side: str) -> list[Any]:
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    command = [sys.executable, "-c", PROGRAM, json.dumps(requests), side]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def projects(url: str, limits: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the files of the page: those before, and those after."""
    after = dict(re.findall(r"^`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL))
    before = re.findall(r"^```\{code\} python\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)
    settings = after["settings.py"].replace("redis://localhost:6379/0", url).replace('"1000/minute"', limits)
    own = settings.replace('"store":', '"store_timeout": 5,\n    "store":')
    theirs = {"settings.py": THEIR_SETTINGS, "urls.py": after["urls.py"], "views.py": before[0]}
    return theirs, {**after, "settings.py": own}


@pytest.mark.one_redis
@pytest.mark.parametrize("limits", ['"1000/minute"', "[]"])
def test_the_projects_of_the_page_give_the_same_answers(redis_server: RedisServer, tmp_path: Path, limits: str) -> None:
    before, after = projects(redis_server.url, limits)
    theirs = run(tmp_path, before, SENT, "theirs")
    assert [theirs.count(answer) for answer in ("welcome", "articles", "found", "thanks", "a captcha", 403)] == [
        *(7, 100, 10, 31, 1, 5)
    ]
    assert [403 if answer == 429 else answer for answer in run(tmp_path, after, SENT, "ours")] == theirs


@pytest.mark.parametrize("limits", ['"1000/minute"', "[]"])
def test_a_captcha_of_the_page_is_asked_for_while_the_store_is_away(tmp_path: Path, limits: str) -> None:
    before, after = projects(f"redis://127.0.0.1:{free_port()}/0", limits)
    away = 'CACHES = {"default": {"BACKEND": "away.Away"}}\n'
    cache_file = f"from django.core.cache.backends.base import BaseCache\n\n\n{getsource(Away)}".replace(": Any", "")
    sent: list[Request] = [("POST", "/comments", {}), ("GET", "/comments", {})]
    files = {**before, "settings.py": THEIR_SETTINGS + away, "away.py": cache_file}
    assert run(tmp_path, files, sent, "theirs") == ["a captcha", "thanks"]
    assert run(tmp_path, after, sent, "ours") == (["a captcha", "thanks"] if limits == "[]" else ["a captcha"] * 2)
