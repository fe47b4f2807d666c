"""Tests the tables of CONTRIBUTING.md: a new part works, and passes all checks, with just the files of its table."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Self
from unittest.mock import ANY

import pytest

from redis_servers import RedisServer
from test_layers import RANK

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
COPIED = ["ratelimit_mw", "tests", "docs", "examples", "benchmarks"]
ROW = re.compile(r"^\| `([^`]+)` \| (.+) \| `([^`]+)` \|$", re.MULTILINE)
Edit = Callable[[str], str]  # from the text of a file, empty if it does not exist, to the text with the new part


class Recipe(NamedTuple):
    """One new part: the section of the page, the value of NAME, the change to each file, and code that uses it."""

    section: str
    name: str
    edits: Mapping[str, Edit]
    proof: str


def new(text: str) -> Edit:
    """Return an edit that creates a file with this text."""

    def edit(given: str) -> str:
        assert not given
        return text

    return edit


def after(anchor: str, text: str) -> Edit:
    """Return an edit that adds text after the first occurrence of the anchor."""

    def edit(given: str) -> str:
        start, found, end = given.partition(anchor)
        assert found, anchor
        return start + found + text + end

    return edit


def before(anchor: str, text: str) -> Edit:
    """Return an edit that adds text before each occurrence of the anchor."""

    def edit(given: str) -> str:
        assert anchor in given, anchor
        return given.replace(anchor, text + anchor)

    return edit


def both(*edits: Edit) -> Edit:
    """Return an edit that makes several edits, in order."""

    def edit(given: str) -> str:
        for one in edits:
            given = one(given)
        return given

    return edit


def renamed(path: str) -> str:
    """Return the text of a file of fixed_window, renamed to the new algorithm."""
    return as_steady((ROOT / path).read_text("utf-8"))


def as_steady(text: str) -> str:
    return text.replace("fixed_window", "steady_window").replace("FixedWindow", "SteadyWindow")


def twice(pattern: str) -> Edit:
    """Return an edit that repeats the match of a pattern for fixed_window, renamed to the new algorithm."""

    def edit(given: str) -> str:
        found = re.search(pattern, given, re.MULTILINE | re.DOTALL)
        assert found is not None, pattern
        return given[: found.end()] + as_steady(found[0]) + given[found.end() :]

    return edit


IMPORTED = r"^    FixedWindow,\n"
ALGORITHM = Recipe(
    "an algorithm",
    "steady_window",
    {
        "ratelimit_mw/algorithms/NAME.py": new(renamed("ratelimit_mw/algorithms/fixed_window.py")),
        "ratelimit_mw/algorithms/NAME.lua": new(renamed("ratelimit_mw/algorithms/fixed_window.lua")),
        "ratelimit_mw/algorithms/__init__.py": both(twice(r"^from \S+fixed_window.*?\n"), twice(r'^    "fixed_w.*?\n')),
        "ratelimit_mw/__init__.py": both(twice(r"^from \S+fixed_window.*?\n"), twice(r'^    "FixedWindow",\n')),
        "tests/test_public_paths.py": twice(r'^        "FixedWindow",\n'),
        "tests/vectors/NAME.json": new(renamed("tests/vectors/fixed_window.json")),
        "tests/algorithms/models.py": both(twice(IMPORTED), twice(r"^    FixedWindow: .*?\n")),
        "tests/algorithms/strategies.py": both(twice(IMPORTED), twice(r'^    "fixed_window".*?\n')),
        "tests/algorithms/adversary.py": both(twice(IMPORTED), twice(r"^    FixedWindow: .*?\n")),
        "tests/mutations/mutations.toml": twice(
            r'^\[\[part\]\]\nfile = "algorithms/fixed_window.py".*?(?=^\[\[part\]\]\nfile = "algorithms/(?!fixed))'
        ),
        "docs/reference/algorithms.md": both(
            twice(r"^\| \[`fixed_window`.*?\n"), twice(r"^## fixed_window\n.*?(?=^## )")
        ),
        "README.md": twice(r"^\| `fixed_window` .*?\n"),
    },
    """
import sys
from ratelimit_mw import Limiter
from ratelimit_mw.stores.redis import RedisStore

for store in (None, RedisStore(sys.argv[1], timeout=5)):
    limiter = Limiter(store)
    assert [limiter.hit("1/minute using steady_window", "alice").allowed for _ in range(2)] == [True, False]
""",
)

CLIENT_STORE = '''"""A store behind a client library."""

import httpcore

from ratelimit_mw.stores.memory import MemoryStore


class HttpcoreStore(MemoryStore):
    """Keeps states in memory, and needs a client library."""

    client = httpcore.ConnectionPool
'''
OPENED = """    if url.startswith("httpcore://"):
        from ratelimit_mw.stores.httpcore import HttpcoreStore

        return HttpcoreStore()
"""
SUITE = """

class TestHttpcoreStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        store = open_store("httpcore://", 1.0)
        store._clock = clock
        return store
"""


def extra(name: str) -> Edit:
    """Return an edit that adds an extra of this name, also to `all`."""
    return both(
        after('redis = ["redis[hiredis]>=5"]\n', f'{name} = ["{name}"]\n'), after('all = ["ratelimit-mw[', f"{name},")
    )


STORE = Recipe(
    "a store",
    "httpcore",
    {
        "ratelimit_mw/stores/NAME.py": new(CLIENT_STORE),
        "ratelimit_mw/stores/url.py": before("    store: ", OPENED),
        "tests/stores/test_suite.py": both(
            after("import Store\n", "from ratelimit_mw.stores.url import open_store\n"), lambda text: text + SUITE
        ),
        "tests/test_layers.py": after('    "redis": ["stores.redis"],\n', '    "httpcore": ["stores.httpcore"],\n'),
        "tests/test_public_paths.py": after(
            '".stores.memory": ["MemoryStore"],\n', '    ".stores.httpcore": ["HttpcoreStore"],\n'
        ),
        "tests/test_optional_imports.py": after('    "hiredis",\n', '    "httpcore",\n'),
        "pyproject.toml": extra("httpcore"),
    },
    "from ratelimit_mw.stores.url import open_store; open_store('httpcore://', 1.0).close()",
)

INTEGRATION = (
    '"""For Bottle."""'
    """

from typing import Any

from ratelimit_mw.core.errors import require
from ratelimit_mw.wsgi import RateLimitMiddleware

with require("bottle"):
    from bottle import Bottle


def limited(app: Bottle, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, **options)
"""
)
APP = """
def bottle(settings: Mapping[str, Any]) -> Any:
    from bottle import Bottle, request, response

    from ratelimit_mw.bottle import limited

    app = Bottle()

    @app.route("/<rest:path>", METHODS)
    @app.route("/", METHODS)
    def hello(rest: str = "") -> str:
        for name, value in _shown(request.environ.get("ratelimit_mw")).items():
            response.set_header(name, value)
        return "hello"

    return limited(app, **settings)


"""
FRAMEWORK = Recipe(
    "a framework",
    "bottle",
    {
        "ratelimit_mw/NAME/__init__.py": new(INTEGRATION),
        "tests/test_layers.py": both(
            after("\nstarlette flask django", " bottle"), after('"flask": ["flask"],\n', '    "bottle": ["bottle"],\n')
        ),
        "tests/test_public_paths.py": after('    ".asgi": ["RateLimitMiddleware"],\n', '    ".bottle": ["limited"],\n'),
        "tests/test_optional_imports.py": both(
            after('    "flask",\n', '    "bottle",\n'), after('("module", ["flask"', ', "bottle"')
        ),
        "tests/web/faces.py": both(before("ASGI: dict[", APP), after("WSGI: dict[str, App] = {", '"bottle": bottle, ')),
        "docs/explanation/architecture.md": after("    flask --> wsgi\n", "    bottle --> wsgi\n"),
        "pyproject.toml": extra("bottle"),
    },
    "from bottle import Bottle; from ratelimit_mw.bottle import limited; limited(Bottle(), limits='1/minute')",
)

REALM_IS_CHECKED = """def _check(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{option}: got {value!r}, expected text")


"""
SETTING = Recipe(
    "a setting",
    "realm",
    {
        "ratelimit_mw/settings/options.py": both(
            before("    enabled: Annotated[", '    realm: Annotated[str, "the name of the protected area", _check]\n'),
            before("class Options(", REALM_IS_CHECKED),
        ),
        "ratelimit_mw/settings/__init__.py": before("    enabled: bool", '    realm: str = ""\n'),
        "tests/web/settings/test_settings.py": both(
            before('enabled"\n', "realm, "),
            before('    ("shadow", 1, ', '    ("realm", 1, "realm: got 1, expected text"),\n'),
        ),
        "tests/web/settings/test_settings_sources.py": before('        "enabled": True,\n', '        "realm": "",\n'),
        "tests/web/settings/test_environment.py": before('    ("MISSING_KEY", ', '    ("REALM", "shop", "shop"),\n'),
        "docs/reference/settings.md": before(
            "| `enabled` |", '| `realm` | text | `""` | the name of the protected area |\n'
        ),
    },
    """
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.schema import settings_schema

assert Settings.of({"limits": [], "realm": "shop"}, {}).realm == "shop"
assert settings_schema()["properties"]["realm"]["type"] == "string"
""",
)
RECIPES = [ALGORITHM, STORE, FRAMEWORK, SETTING]


# Runs pytest for each line of arguments, in a fork. The libraries that the tests use are imported only once, before.
RUNNER = """
import json, os, sys
import django.http, django.urls, fakeredis.aioredis, fastapi, flask, httpx, hypothesis, pytest, werkzeug.test

for line in sys.stdin:
    if not (child := os.fork()):
        output = os.open("output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = pytest.main(json.loads(line))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Checkout(AbstractContextManager["Checkout", None]):
    """A copy of this checkout with a new part in it."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("_build"))
        for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.ini")]:
            shutil.copy(path, folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_"))}
        self.environment = {**kept, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.before = {path: self.read(path) for path in recipe.edits}

    def read(self, path: str) -> str:
        file = self.folder / self.named(path)
        return file.read_text("utf-8") if file.exists() else ""

    def named(self, text: str) -> str:
        return text.replace("NAME", self.recipe.name)

    def add(self, path: str) -> None:
        """Make the change to one file."""
        file = self.folder / self.named(path)
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.recipe.edits[path](self.before[path]), "utf-8")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy, on its package."""
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def check(self, command: str) -> tuple[int, str]:
        """Run the check of a row. Returns the exit code and the output."""
        words = shlex.split(self.named(command))
        if words[0] == "python":
            done = self.python(*words[1:])
            return done.returncode, done.stdout + done.stderr
        assert self.runner.stdin is not None
        assert self.runner.stdout is not None
        self.runner.stdin.write(
            json.dumps(["-q", "-x", "--noconftest", "-p", "message_codes", "-p", "no:cacheprovider", *words]) + "\n"
        )
        self.runner.stdin.flush()
        code = int(self.runner.stdout.readline())
        return code, (self.folder / "output.txt").read_text("utf-8")

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", RUNNER]
        pipe = subprocess.PIPE
        self.runner = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=pipe, stdout=pipe, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.communicate()


def rows(recipe: Recipe) -> dict[str, str]:
    """Return the files of a recipe's table, and the check that fails without each."""
    section = PAGE.partition(f"\n## Add {recipe.section}\n")[2].partition("\n## ")[0]
    return {file: check for file, _, check in ROW.findall(section)}


@pytest.fixture
def url(redis_servers: Mapping[str, RedisServer]) -> str:
    return next(iter(redis_servers.values())).url


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_new_part_needs_no_file_beside_those_of_its_table(recipe: Recipe, tmp_path: Path, url: str) -> None:
    checks = rows(recipe)
    assert list(checks) == list(recipe.edits)
    with Checkout(tmp_path, recipe) as checkout:
        for path in recipe.edits:
            checkout.add(path)
        done = checkout.python("-c", recipe.proof, url)
        assert done.returncode == 0, done.stderr
        every = dict.fromkeys(checks.values())
        whole = [check for check in every if not (check.startswith("python ") or " -k " in check)]
        for check in [" ".join(whole), *[check for check in every if check not in whole]]:
            assert checkout.check(check) == (0, ANY), check


def test_table_of_packages_lists_every_package() -> None:
    table = PAGE.partition("\n## Where things are\n")[2].partition("\n## ")[0]
    packages = re.findall(r"^\| `ratelimit_mw/(\w+)[^`]*` \|", table, re.MULTILINE)
    assert packages == list(RANK)


def test_every_file_named_on_the_page_exists() -> None:
    named = {
        one for one in re.findall(r"`((?:ratelimit_mw|tests|docs|benchmarks)/[^`\s:]*)", PAGE) if "NAME" not in one
    }
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []
