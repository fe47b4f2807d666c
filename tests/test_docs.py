"""Runs every code block of the README and the docs, except those that another test covers."""

import asyncio
import contextlib
import io
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from werkzeug.test import Client

from ratelimit_mw.algorithms import ALGORITHMS, SCRIPTED
from ratelimit_mw.cli import main
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.options import Options
from ratelimit_mw.testing import control, freeze
from redis_cluster import RedisCluster
from redis_servers import RedisServer

pytestmark = pytest.mark.usefixtures("with_codes")  # users see messages with codes

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "docs/tutorial").glob("*.md"))  # tests/tutorials follows their steps
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(set((ROOT / "docs").rglob("*.md")) - set(TUTORIALS))]
ON_A_CLUSTER = ROOT / "docs/how-to/redis.md"
ON_ALGORITHMS = ROOT / "docs/reference/algorithms.md"
FENCE = re.compile(r"^```([a-z{}-]*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?:Write )?`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Shell lines are not run here; the value names the test, the tox environment or the CI step that runs the line.
SHELL = {
    "python3 -m venv .venv && . .venv/bin/activate": ".ci/run",
    'python3 -m pip install ".[demo]"': "tox -e demo",
    'python3 -m pip install ".[demo]" && python3 -m ratelimit_mw demo': "tox -e demo, test_demo.py",
    "python3 -m pip install tox && python3 -m tox run-parallel": ".ci/run",
    'python3 -m pip install "ratelimit-mw[redis]"': "tests/tutorials/test_install.py",
    'python3 -m pip install ".[redis]"': "tests/tutorials/test_install.py",
    'python3 -m pip install "ratelimit-mw[redis] @ git+https://HOST/PATH.git"': "tests/tutorials/test_install.py",
    'python3 -m pip install "ratelimit-mw[fastapi,redis]"': "tests/tutorials/test_install.py, with one extra",
    'python3 -m pip install -e ".[redis]" --group tests': "tox, which installs the same extra and group",
    "python3 -m pytest tests/test_limiter.py": "tox",
    'python3 -m pip install "ratelimit-mw[serve,redis]"': "tests/tutorials/test_install.py, with one extra",
    "python -m ratelimit_mw serve limits.toml --bind 127.0.0.1:8900": "tests/proxies",
    "python -m ratelimit_mw serve limits.toml --bind 127.0.0.1:8900 --grpc 127.0.0.1:8901": "tests/proxies",
    'python -c "import secrets; print(secrets.token_urlsafe(32))"': "the standard library",
    "ratelimit-mw dashboard limits.toml --write        # http://127.0.0.1:8099": "tests/dashboard/test_mounted.py",
    'curl -H "Authorization: Bearer $RATELIMIT_MW_DASHBOARD_SECRET" "http://127.0.0.1:8099/data.json?seconds=60"': (
        "tests/dashboard/test_access.py"
    ),
    'pip install "ratelimit-mw[fastapi]" uvicorn': "tox -e release",
    "pip install ratelimit-mw fastmcp uvicorn": "tox -e guides",
    'pip install "ratelimit-mw[flask]" gunicorn': "tox -e release",
    "uvicorn llm_gateway:app": "tests/guides",
    "uvicorn mcp_tools:app": "tests/guides",
    "gunicorn saas_plans:app": "tests/served/test_examples.py",
    'curl -H "x-api-key: key-of-ann" http://127.0.0.1:8000/reports': "tests/served/test_examples.py",
    'curl -H "x-api-key: key-of-ann" http://127.0.0.1:8000/usage': "tests/served/test_examples.py",
    "curl -i http://127.0.0.1:8000/": "test_pages_of_frameworks_begin_with_an_app_and_its_refusal",
    "python -m ratelimit_mw schema > ratelimit.schema.json": "test_schema.py",
    "python -m ratelimit_mw replay limits.toml access.log access.log.1.gz --suggest --html report.html": "tests/replay",
    "python -m ratelimit_mw tail limits.toml --rule login": "tests/stores/test_admin.py",
    "install -d -o root -g web -m 2770 /var/lib/app": "tests/stores/test_sqlite_files.py, with another group",
    "install -o root -g web -m 660 /dev/null /var/lib/app/limits.db": "tests/stores/test_sqlite_files.py",
}

# Django allows one set of settings per process, so the files of these pages run in processes of their own.
ON_DJANGO = {
    ROOT / "docs/how-to/django.md": ("settings", "/feed"),
    ROOT / "docs/how-to/migrate-from-django-ratelimit.md": ("settings", "/articles"),
}
SERVED = """
import os, sys

sys.path.insert(0, ".")
if sys.argv[1] == "settings":
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
else:
    __import__(sys.argv[1])
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
from django.core.management import call_command
from werkzeug.test import Client

call_command("check", "--fail-level", "WARNING")
print([Client(application).get(sys.argv[2]).status_code for _ in range(110)])
"""

# Pages whose blocks print what is admitted at one instant: there the time of the stores stands still, because a busy
# machine would print something else.
AT_ONE_INSTANT = {ROOT / "docs/how-to/come-from-nginx.md"}

# Files that a page includes are not run here either; the value names the tests that run them. They are shown whole:
# no options but `OPTIONS` are allowed.
INCLUDED = {
    ROOT / "examples/own_store.py": "test_own_parts.py",
    ROOT / "examples/own_algorithm.py": "test_own_parts.py",
    ROOT / "examples/plain_function.py": "test_examples.py",
    ROOT / "examples/saas_plans.py": "test_examples.py",
    ROOT / "examples/llm_gateway.py": "tests/guides",
    ROOT / "examples/mcp_tools.py": "tests/guides",
    **dict.fromkeys((ROOT / "ratelimit_mw").rglob("bucket.*"), "tests/algorithms, tests/stores"),
    **{ROOT / f"ratelimit_mw/algorithms/{name}.py": "tests/algorithms" for name in SCRIPTED},
    **{ROOT / f"ratelimit_mw/algorithms/{name}.lua": "tests/stores" for name in SCRIPTED},
}
# Commands that are run here, with the settings that the page shows before.
RUN = ("check", "peek", "reset", "keys", "top")
CHECK = tuple(f"python -m ratelimit_mw {name} limits.toml " for name in RUN)
PROXIES = ("nginx", "caddyfile", "haproxy", "lua", "yaml")
PROGRAMS = ("javascript", "go", "bash")
OPTIONS = {"language", "caption"}
FIELDS = ("**Admits** w", "\nExample: ")


BY_FRAMEWORK = ROOT / "docs/how-to/at-3-am.md"  # its blocks are in tabs, one for each framework
RUN_EACH = """
import contextlib, io, json, os, shlex, sys

sys.path.insert(0, ".")
from flask.cli import cli
from ratelimit_mw.cli import main

if os.path.exists("settings.py"):
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    from django.core.management import execute_from_command_line

answers = []
for line in json.loads(sys.argv[1]):
    words, out, code = shlex.split(line, comments=True), io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            if words[0] == "flask":
                code = cli.main(words[1:], standalone_mode=False) or 0
            elif words[1] == "manage.py":
                execute_from_command_line(words[1:])
            else:
                code = main(words[3:])
        except SystemExit as end:
            code = end.code
    answers.append([line, code, out.getvalue().splitlines()])
print(json.dumps(answers))
"""
CHANGING = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{8}(?=  |:)|[0-9-]{10} [0-9:]{8} \w+(?: \(in \d+ \w+\))?|\w+@[\w.-]+"
)  # keys, ids, times and what is left of them, names

EXEMPT, RAISED, BLOCKED = (
    ("X  ip=192.0.2.7", "all rules", "exempt", "until X  X  ticket 4711"),
    ("X  user=bob", "default", "1000/minute", "until X  X"),
    ("X  ip=192.0.2.0/24", "all rules", "block", "until X  X"),
)


def in_columns(*rows: tuple[str, ...]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# what the commands of the page print, from `override set` on
PRINTED = [
    in_columns(EXEMPT),
    in_columns(RAISED),
    in_columns(BLOCKED),
    ["X  everyone  @login  shadow  until X  X"],
    in_columns(
        ("X  everyone", "@login", "shadow", "until X  X"),
        ("X  everyone", "all rules", "off", "until X  X  refuses everyone"),
    ),
    ["all rules are on"],
    in_columns(EXEMPT, RAISED, BLOCKED),
    in_columns(RAISED),
    in_columns(EXEMPT, BLOCKED),
    in_columns(
        ("X  X  X", "clear everything", ""),
        ("X  X  X", "clear user=bob", ""),
        ("X  X  X", "switch on", ""),
        ("X  X  X", "switch off for 15m", "refuses everyone"),
        ("X  X  X", "switch shadow @login for 2h", ""),
        ("X  X  X", "block ip=192.0.2.0/24 for 1h", ""),
        ("X  X  X", "limits 1000/minute for user=bob in default for 1d", ""),
        ("X  X  X", "exempt ip=192.0.2.7 for 1h", "ticket 4711"),
    ),
]


# The pages that begin with an app, and the refusal that it answers with.
FIRST_SCREENS = [
    ROOT / "docs/index.md",
    *(ROOT / f"docs/how-to/{name}.md" for name in ("fastapi", "flask", "django", "other-apps")),
]
ANSWER_FOUR = """
import asyncio, json, os, sys

sys.path.insert(0, ".")
import httpx
import shop
from ratelimit_mw.testing import freeze

app = getattr(shop, "app", None)
if app is None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "shop"
    from django.core.asgi import get_asgi_application

    app = get_asgi_application()
elif hasattr(app, "wsgi_app"):
    from asgiref.wsgi import WsgiToAsgi

    app = WsgiToAsgi(app)


async def answers():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return [await client.get("/") for _ in range(4)]


with freeze():
    *before, last = asyncio.run(answers())
print(json.dumps([[answer.status_code for answer in before], last.status_code, dict(last.headers), last.json()]))
"""
ELSE_IN_SETTINGS = 'SECRET_KEY, ROOT_URLCONF, ALLOWED_HOSTS, urlpatterns = "of a test", "shop", ["*"], []\n'


class Block(NamedTuple):
    language: str
    argument: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text("utf-8"))]


def shown(page: Path, block: Block) -> Path:
    """Return the file that a block includes."""
    return (page.parent / block.argument).resolve()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def secret_of_the_live_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the page asks its readers to set."""
    monkeypatch.setenv("RATELIMIT_MW_DASHBOARD_SECRET", "one-secret-of-the-tests")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Reset the log of refusals and the root's, because a page may turn the one on, and Litestar changes the other."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    log = logging.getLogger("ratelimit_mw.refusals")
    log.setLevel(logging.NOTSET)
    log.handlers.clear()


@pytest.mark.one_redis
@pytest.mark.parametrize("page", [page for page in PAGES if page not in (ON_A_CLUSTER, BY_FRAMEWORK)], ids=name_of)
def test_every_block_runs(page: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    run(page, {"redis://localhost:6379/0": redis_server.url, "/run/app/": f"{tmp_path}/"})


def test_every_block_of_the_page_on_redis_runs(redis_server: RedisServer, redis_cluster: RedisCluster) -> None:
    urls = {
        "redis://localhost:6379/0": redis_server.url,
        "redis+cluster://localhost:7000,localhost:7001": redis_cluster.url,
        "redis://localhost:7000": redis_cluster.redis_url,
    }
    assert all(url in ON_A_CLUSTER.read_text("utf-8") for url in urls)
    run(ON_A_CLUSTER, urls)


@pytest.mark.one_redis
@pytest.mark.parametrize("framework", ["FastAPI", "Flask", "Django"])
def test_every_command_of_the_page_on_changes_runs_in_each_framework(
    framework: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    text = BY_FRAMEWORK.read_text("utf-8").replace("redis://localhost:6379/0", redis_server.url)
    parts = re.findall(rf"^:::{{tab-item}} {framework}\n(.*?)^:::$", text, re.MULTILINE | re.DOTALL)
    for name, code in FILE.findall(parts[0]):
        (tmp_path / name).write_text(code, "utf-8")
    lines = [
        line for part in parts for block in FENCE.findall(part) if block[0] == "sh" for line in block[2].splitlines()
    ]
    command = [sys.executable, "-c", RUN_EACH, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=300)
    answers = json.loads(done.stdout)
    assert [code for _, code, _ in answers] == [0] * len(lines), done.stderr
    (looked, *_), (forgotten,), *printed = [[CHANGING.sub("X", one) for one in out] for *_, out in answers]
    first = "default  100/60s" if framework == "FastAPI" else "login  5/3600s"  # there, the middleware is a step before
    assert " ".join(looked.split()).startswith(" ".join(first.split()))
    assert forgotten.startswith("0 buckets forgotten;")
    user = "42" if framework == "Django" else "bob"
    expected = [[" ".join(one.replace("user=bob", f"user={user}").split()) for one in out] for out in PRINTED]
    assert [[" ".join(one.split()) for one in out] for out in printed] == expected  # the width of times varies


def run(page: Path, urls: dict[str, str]) -> None:
    """Run every block of a page. `urls`: the URL of a test server for each URL that the page names."""
    found = blocks(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = settings = ""
    for block in found:
        language, _, text = block
        for named, real in urls.items():
            text = text.replace(named, real)
        if language == "python":
            if page not in ON_DJANGO:  # test_django_projects_of_the_docs_refuse_excess_requests runs those
                printed = run_python(page, text, names)
        elif language == "text":
            assert printed == text
        elif language == "toml":
            settings = text
            Settings.of(tomllib.loads(text), {})
        elif language == "http":
            json.loads(text.partition("\n\n")[2])
        elif language == "sh":
            printed = in_a_shell(text, settings) or printed
        else:
            check_what_is_not_run(page, block)


def run_python(page: Path, text: str, names: dict[str, Any]) -> str:
    """Run a block, and return its output. Calls its tests, and checks that its app refuses in the end."""
    output = io.StringIO()
    stopped = freeze() if page in AT_ONE_INSTANT else contextlib.nullcontext()
    with stopped, contextlib.redirect_stdout(output):
        exec(compile(text, str(page), "exec"), names)  # noqa: S102  # the point of this test
    for name in [name for name in names if name.startswith("test_")]:
        with control(empty=True) as ratelimit:  # like the fixture
            names.pop(name)(ratelimit)
    if "app" in names:
        assert 429 in call_often(names.pop("app"))
    return output.getvalue()


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_python_blocks_of_tutorials_compile(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("sh", "python")
        if block.language == "python":
            compile(block.text, str(page), "exec")


def check_what_is_not_run(page: Path, block: Block) -> None:
    if block.language == "{literalinclude}":
        assert shown(page, block) in INCLUDED
        assert shown(page, block).is_file()
        assert {line.split(":")[1] for line in block.text.splitlines()} <= OPTIONS
    elif block.language == "{code}":  # of another library; see tests/web/peers/test_beside_django_ratelimit.py
        assert page.stem.startswith("migrate-from-")
        compile(block.text, str(page), "exec")
    elif block.language in PROXIES:
        assert page.stem.startswith("behind-")  # tests/proxies runs these
    elif block.language in PROGRAMS:
        assert page.stem == "many-services"  # tests/service/test_programs.py runs these
    elif block.language == "mermaid":
        assert page == ROOT / "docs/explanation/architecture.md"  # test_architecture.py checks its diagrams
    elif block.language == "{raw}":
        assert page == ROOT / "docs/explanation/algorithms-drawn.md"  # tests/browser/test_site.py
    elif block.language == "html":
        assert page == ROOT / "docs/how-to/show-limits.md"  # tests/browser/test_browser.py opens it
    elif block.language == "{include}":
        assert shown(page, block) == ROOT / "CHANGELOG.md"
    elif block.language == "{eval-rst}":
        assert page == ROOT / "docs/reference/python.md"  # tox -e docs imports the objects that it names
    else:
        assert block.language == "{toctree}"


def in_a_shell(lines: str, settings: str) -> str:
    """Run a command with the settings that the page showed last, and return its output. Other lines are not run."""
    if not lines.startswith(CHECK):
        assert set(lines.splitlines()) <= set(SHELL)
        return ""
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(output):
        Path("limits.toml").write_text(settings, "utf-8")
        assert main(shlex.split(lines)[3:]) == 0
    return output.getvalue()


MOST_CALLS = 1_000


def call_often(app: Any) -> list[int]:
    """Call an app until it refuses, and return the statuses. Apps of the docs refuse after about a hundred calls.

    A busy machine may need more calls: this process counts a call if Redis does not reply in time.
    """
    statuses: list[int] = []
    if hasattr(app, "wsgi_app"):
        while 429 not in statuses and len(statuses) < MOST_CALLS:
            statuses.append(Client(app).get("/").status_code)
        return statuses

    async def call() -> None:
        transport = httpx.ASGITransport(app=app)
        async with serving(app), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            while 429 not in statuses and len(statuses) < MOST_CALLS:
                statuses.append((await client.get("/")).status_code)

    asyncio.run(call())
    return statuses


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[None]:
    """Run the lifespan of the app, as a server does. At its end, the middleware closes its store."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    to_app.put_nowait({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    yield
    to_app.put_nowait({"type": "lifespan.shutdown"})
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    await running


@pytest.mark.one_redis
@pytest.mark.parametrize("page", ON_DJANGO, ids=name_of)
def test_django_projects_of_the_docs_refuse_excess_requests(
    page: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    files = dict(FILE.findall(page.read_text("utf-8")))
    assert len(files) + (page in FIRST_SCREENS) == sum(block.language == "python" for block in blocks(page))
    for name, text in files.items():
        tmp_path.joinpath(name).write_text(text.replace("redis://localhost:6379/0", redis_server.url), "utf-8")
    command = [sys.executable, "-c", SERVED, *ON_DJANGO[page]]
    done: Any = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    statuses = json.loads(done.stdout.splitlines()[-1])
    assert (statuses[0], statuses[-1]) == (200, 429)


@pytest.mark.parametrize("page", FIRST_SCREENS, ids=name_of)
def test_pages_of_frameworks_begin_with_an_app_and_its_refusal(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    languages = [block.language for block in found]
    apps = [block.text for block in found[: languages.index("http")] if block.language == "python"]
    assert apps
    head, _, body = found[languages.index("http")].text.partition("\n\n")
    status, *fields = head.splitlines()
    assert status == "HTTP/1.1 429 Too Many Requests"
    shown_fields = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    for app in apps:
        (tmp_path / "shop.py").write_text(app + ELSE_IN_SETTINGS, "utf-8")
        command = [sys.executable, "-c", ANSWER_FOUR]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=300)
        before, last, answered, problem = json.loads(done.stdout)
        assert 429 not in before
        answered.pop("content-length", None)
        assert (last, answered, problem) == (429, shown_fields, json.loads(body))


def test_javascript_algorithms_of_the_docs_decide_like_python() -> None:
    check = [sys.executable, "docs/from_code.py", "algorithms", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")
    if node := shutil.which("node"):  # tests/browser/test_site.py compares the decisions in Chromium
        files = [str(ROOT / f"docs/_static/{name}.js") for name in ("algorithms-answers", "algorithms")]
        code = "process.argv.slice(1).map(require); console.log(ratelimitAnswers.map(ratelimitAlgorithms.agreement))"
        counts = subprocess.run([node, "-e", code, *files], capture_output=True, text=True, check=True).stdout
        pairs = re.findall(r"\[ (\d+), (\d+) \]", counts)
        assert pairs
        assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_readme_matches_the_stored_answers_and_figures() -> None:
    command = [sys.executable, "docs/from_runs.py", "readme", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")


def test_picture_of_the_replay_report_is_up_to_date() -> None:
    command = [sys.executable, "docs/from_runs.py", "replay", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")


def test_readme_shows_the_comparison_and_measured_speed() -> None:
    readme = PAGES[0].read_text("utf-8")
    ours = {
        "a refused request is charged to": "nothing",
        "Redis calls per request, 3 limits": "1",
        "nothing listens at Redis' port": "serves",
        "Redis hangs": "serves",
        "paths without a route": "limited",
        "`Retry-After` by default": "yes",
    }
    (questions, answers) = re.findall(r"^\| (?:\d{4}-\d\d-\d\d|ratelimit_mw \S+) \| (.*) \|$", readme, re.MULTILINE)
    assert dict(zip(questions.split(" | "), answers.split(" | "), strict=True)) == ours
    measured = json.loads((ROOT / "docs/explanation/performance.json").read_text("utf-8"))["rows"]
    (served,) = [row["value"] for row in measured if row["row"] == "served-redis"]
    assert f" one process serves {served:.0%}".replace("%", " %") in readme


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    top = page.partition("## Global settings")[2].partition("## In a rule")[0]
    assert re.findall(r"^\| `(\w+)` \|", top, re.MULTILINE) == list(Options.__annotations__)


def test_the_tables_of_algorithms_are_complete() -> None:
    for page in (ROOT / "README.md", ON_ALGORITHMS):
        rows = re.findall(r"^\| \[?`(\w+)`", page.read_text("utf-8"), re.MULTILINE)
        assert [name for name in rows if name in ALGORITHMS] == list(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_documented(name: str) -> None:
    page = ON_ALGORITHMS.read_text("utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for field in FIELDS:
        assert section.count(field) == 1, field
    found = [Block(*block) for block in FENCE.findall(section)]
    assert {"python", "text"} <= {block.language for block in found}
    (side_by_side,) = re.findall(r"^````{container} twins\n(.*?)^````$", section, re.MULTILINE | re.DOTALL)
    files = [shown(ON_ALGORITHMS, Block(*block)) for block in FENCE.findall(side_by_side)]
    assert files == [ROOT / f"ratelimit_mw/algorithms/{name}.{kind}" for kind in ("py", "lua")]
    (row,) = re.findall(rf"^\| \[`{name}`\]\(#{name}\).*", page, re.MULTILINE)
    *_, memory, redis = row.strip("| ").split(" | ")
    assert memory.isdigit()
    assert redis.isdigit()


def test_search_words_are_those_of_pages() -> None:
    words = tomllib.loads((ROOT / "docs/search.toml").read_text("utf-8"))
    assert [page for page in words if not (ROOT / f"docs/{page}.md").is_file()] == []


def test_links_between_pages_are_not_broken() -> None:
    for page in [*PAGES, *TUTORIALS]:
        for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
