"""`override`, `switch` and `changes`: with a settings file, with `--app`, in Flask and in Django."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from httpx import ASGITransport, AsyncClient
from starlette.responses import PlainTextResponse

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli import main
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.django.management.commands.ratelimit import Command
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Control, freeze

SEARCH = "2/hour using fixed_window"
CLIENT = "192.0.2.7"
NOW = 4_102_444_800.0  # the year 2100, so that what is set has not ended by the clock of the app
FOLLOW = "each process follows after its next request, within refresh, 1 s"
NO_END = "without --for, it ends after a day"
NO_APP = (
    "limits that are attached to endpoints are not in a settings file: `keys` lists their buckets, `reset --key` "
    "forgets them, and `--app MODULE:APP`, `flask ratelimit` and `manage.py ratelimit` find them"
)


class Answer(NamedTuple):
    code: int
    out: list[str]
    err: list[str]


class Front(NamedTuple):
    """One of the command lines. `ask`: requests `/search` from an address, and returns the status."""

    name: str
    run: Callable[..., Answer]
    ask: Callable[[str], int]
    clock: Control

    def get(self, address: str, times: int = 1) -> list[int]:
        """Return the statuses of requests, after the app has looked for changes."""
        self.clock.advance(1.0)
        self.ask("198.51.100.9")
        return [self.ask(address) for _ in range(times)]


def settings_of(url: str) -> dict[str, Any]:
    return {"limits": "50/minute", "key": "ip", "store": url, "store_timeout": 5.0}


@django_limit(SEARCH, name="search")
def search_view(request: Any) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("search", search_view)]


def fastapi_app(url: str) -> FastAPI:
    app = FastAPI()

    @app.get("/search", dependencies=[Depends(RateLimit(SEARCH, name="search"))])
    async def search() -> str:
        return "found"

    app.add_middleware(RateLimitMiddleware, settings_of(url))
    return app


def flask_app(url: str) -> Flask:
    app = Flask("shop")
    limiter = RateLimiter(app, settings_of(url))

    @app.get("/search")
    @limiter.limit(SEARCH, name="search")
    def search() -> str:
        return "found"

    return app


def getting(app: Any, runner: asyncio.Runner) -> Callable[[str], int]:
    async def get(address: str) -> int:
        async with AsyncClient(transport=ASGITransport(app, client=(address, 1)), base_url="http://test") as client:
            status = (await client.get("/search")).status_code
        if looks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(looks, timeout=30)
        return status

    return lambda address: runner.run(get(address))


@pytest.fixture
def clock() -> Iterator[Control]:
    with freeze() as control:
        yield control


@pytest.fixture(params=["file", "app", "flask", "django"])
def front(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Front]:
    name, url = request.param, f"sqlite://{tmp_path}/limits.db"

    def in_cli(*words: str) -> Answer:
        place = [str(tmp_path / "limits.json")] if name == "file" else ["--app", "shop_app:create"]
        end = 2 if words[0] == "override" else 1
        code = main([*words[:end], *place, *words[end:]])
        out, err = capsys.readouterr()
        return Answer(code, out.splitlines(), err.splitlines())

    def in_flask(*words: str) -> Answer:
        done = app.test_cli_runner().invoke(args=["ratelimit", *words])
        return Answer(done.exit_code, done.stdout.splitlines(), done.stderr.splitlines())

    def in_django(*words: str) -> Answer:
        out, err, code = StringIO(), StringIO(), 0
        try:
            call_command(Command(), *words, stdout=out, stderr=err)
        except SystemExit as end:
            code = int(end.code or 0)
        return Answer(code, out.getvalue().splitlines(), err.getvalue().splitlines())

    clock = request.getfixturevalue("clock")
    if name == "django":
        middleware = ["ratelimit_mw.django.RateLimitMiddleware"]
        with override_settings(ROOT_URLCONF=__name__, RATELIMIT_MW=settings_of(url), MIDDLEWARE=middleware):
            django_client = Client()
            yield Front(name, in_django, lambda ip: django_client.get("/search", REMOTE_ADDR=ip).status_code, clock)
    elif name == "flask":
        app = flask_app(url)
        client = app.test_client()
        yield Front(
            name, in_flask, lambda ip: client.get("/search", environ_base={"REMOTE_ADDR": ip}).status_code, clock
        )
    else:
        (tmp_path / "limits.json").write_text(json.dumps(settings_of(url)))
        monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(create=lambda: fastapi_app(url)))
        with asyncio.Runner() as runner:
            yield Front(name, in_cli, getting(fastapi_app(url), runner), clock)


@pytest.fixture(autouse=True)
def _known_ids_and_times(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    numbers = count(1)
    monkeypatch.setattr("ratelimit_mw.admin.override_set.token_hex", lambda _: f"id{next(numbers)}")
    for module in ("changing", "override_set"):
        monkeypatch.setattr(f"ratelimit_mw.admin.{module}.time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setattr("ratelimit_mw.admin.output.time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setenv("TZ", "XYZ-5:45")  # east of Greenwich
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


BY = ("--by", "ann")
DAY_LATER = "until 2100-01-02 05:45:00 XYZ (in 24 h"
HOUR_LATER = "until 2100-01-01 06:45:00 XYZ (in 60 min"


def test_one_client_is_exempt_until_it_is_cleared(front: Front) -> None:
    rule, written = "@search", "@search" if front.name == "file" else "search"
    assert front.get(CLIENT, 3) == [200, 200, 429]
    answer = front.run("override", "set", "--ip", CLIENT, "--rule", written, "--exempt", "--note", "VIP", *BY)
    row = f"id1  ip={CLIENT}  {rule}  exempt  {DAY_LATER})  ann  VIP"
    assert answer == (0, [row], [NO_END, FOLLOW])
    assert front.get(CLIENT, 3) == [200, 200, 200]
    assert front.get("192.0.2.8", 3) == [200, 200, 429]
    assert front.run("override", "list") == (0, [row], [])
    shown: dict[str, Any] = {"id": "id1", "rule": rule, "who": f"ip={CLIENT}", "action": "exempt", "limits": None}
    shown |= {"until": NOW + 86_400, "note": "VIP", "by": "ann"}
    assert json.loads(front.run("override", "list", "--json").out[0]) == {"overrides": [shown]}
    answer = front.run("peek", "--request", "/search", "--ip", CLIENT)
    if front.name == "file":  # has no limit of the endpoint
        assert (answer.code, answer.out[0].split()[0], answer.err[-1]) == (0, "default", NO_APP)
    else:
        assert (answer.code, answer.out[0]) == (0, f"override id1: exempt {DAY_LATER}; ip={CLIENT}; rule {rule}; VIP)")
        assert json.loads(front.run("peek", "--request", "/search", "--ip", CLIENT, "--json").out[0])["overrides"] == [
            shown
        ]
    assert front.run("override", "clear", "--id", "id1", *BY) == (0, [row], ["1 cleared", FOLLOW])
    assert front.get(CLIENT) == [429]
    nothing = ["nothing cleared: `override list` shows what there is"]
    assert front.run("override", "clear", "--ip", CLIENT) == (1, [], nothing)
    assert front.run("override", "list") == (0, [], ["there are no overrides and no switches"])


def test_one_client_has_other_limits_and_reset_forgets_what_is_counted_with_and_without_them(front: Front) -> None:
    rule = "@search"
    assert front.get(CLIENT, 3) == [200, 200, 429]
    limits = ("--limits", "4/hour using fixed_window", "--for", "1h", "--json")
    answer = front.run("override", "set", "--ip", CLIENT, "--rule", rule, *limits, *BY)
    shown: dict[str, Any] = {"id": "id1", "rule": rule, "who": f"ip={CLIENT}", "action": "limits"}
    shown |= {"limits": "4/hour using fixed_window", "until": NOW + 3600, "note": "", "by": "ann"}
    assert (answer.code, json.loads(answer.out[0]), answer.err) == (0, {"overrides": [shown]}, [])
    assert front.get(CLIENT, 5) == [200, 200, 200, 200, 429]
    if front.name == "file":
        return
    line = f"override id1: 4/hour using fixed_window {HOUR_LATER}; ip={CLIENT}; rule @search)"
    described = ("--request", "/search", "--ip", CLIENT)
    first, *_, last = front.run("peek", *described).out
    assert (first, last.split()[:6]) == (line, ["search", "4/3600s", "using", "fixed_window", "0", "of"])
    done = json.loads(front.run("reset", *described, "--yes", "--json").out[0])
    forgotten = {"@search": 2, "default": 1 if front.name == "app" else 0}
    assert (done["forgotten"], done["overrides"]) == (sum(forgotten.values()), [shown])
    assert " 4 of 4 left " in front.run("peek", *described).out[-1]
    assert front.run("override", "clear", "--all", "--yes").code == 0
    assert " 2 of 2 left " in front.run("peek", *described).out[-1]


def test_a_network_is_blocked_and_everything_is_switched_off_and_on(front: Front) -> None:
    assert front.get(CLIENT) == [200]
    assert front.run("override", "set", "--ip", "192.0.2.0/24", "--block", *BY).code == 0
    assert front.get(CLIENT) + front.get("198.51.100.1") == [403, 200]
    assert front.run("peek", "--request", "/search", "--ip", CLIENT).out == [
        f"override id1: blocked {DAY_LATER}; ip=192.0.2.0/24)",
        "an override blocks the client",
    ]
    assert front.run("override", "clear", "--ip", "192.0.2.0/24").code == 0
    assert front.get(CLIENT, 2) == [200, 429]

    switched = front.run("switch", "off", "--for", "1h", "--note", "fire", *BY)
    assert switched == (0, [f"id3  everyone  all rules  off  {HOUR_LATER})  ann  fire"], [FOLLOW])
    assert front.get(CLIENT, 3) == [200, 200, 200]
    assert front.run("peek", "--request", "/search", "--ip", CLIENT).out == [
        f"override id3: off for everyone {HOUR_LATER}; fire)",
        "no limit applies to this request",
    ]
    assert front.run("switch", "on", *BY) == (0, ["all rules are on"], [FOLLOW])
    nothing = ["nothing ended: no switch was in force"]
    assert front.run("switch", "on", *BY) == (1, ["all rules are on"], nothing)
    assert front.get(CLIENT) == [429]


def test_a_rule_is_in_shadow_and_a_change_is_undone(front: Front) -> None:
    assert front.get(CLIENT, 3) == [200, 200, 429]
    row = f"id1  everyone  @search  shadow  {DAY_LATER})  ann"
    assert front.run("switch", "shadow", "--rule", "@search", *BY) == (0, [row], [NO_END, FOLLOW])
    assert front.get(CLIENT) == [200]
    if front.name != "file":
        shown = front.run("peek", "--request", "/search", "--ip", CLIENT).out[-1]
        assert re.search(r" 0 of 2 left, would refuse for \d+ min \(shadow: admits\)  ", shown)
    at = "2100-01-01 05:45:00 XYZ"
    assert front.run("changes") == (0, [f"id1  {at}  ann  switch shadow @search for 1d"], [])
    undone = front.run("changes", "--undo", "id1", "--note", "calm", "--by", "bo")
    assert undone == (0, [f"id2  {at}  bo  undo switch shadow @search for 1d  calm"], [FOLLOW])
    assert front.get(CLIENT) == [429]
    first = {"id": "id1", "at": NOW, "by": "ann", "what": "switch shadow @search for 1d", "note": "", "undone": True}
    second = {"id": "id2", "at": NOW, "by": "bo", "what": "undo switch shadow @search for 1d", "note": "calm"}
    assert json.loads(front.run("changes", "--json").out[0]) == {"changes": [{**second, "undone": False}, first]}
    assert front.run("changes").out == [
        f"id2  {at}  bo   undo switch shadow @search for 1d      calm",
        f"id1  {at}  ann  switch shadow @search for 1d (undone)",
    ]


def test_both_names_of_an_endpoints_limit_mean_one_switch(front: Front) -> None:
    assert front.get(CLIENT, 3) == [200, 200, 429]
    front.run("switch", "shadow", "--rule", "@search" if front.name == "file" else "search")
    assert front.get(CLIENT) == [200]
    assert front.run("switch", "on", "--rule", "@search") == (0, ["all rules are on"], [FOLLOW])
    assert front.get(CLIENT) == [429]


def test_everything_is_cleared_after_a_question(front: Front) -> None:
    assert front.get(CLIENT) == [200]
    front.run("override", "set", "--ip", CLIENT, "--exempt")
    answer = front.run("override", "clear", "--all")
    asks = "override clear: cannot ask for confirmation without a terminal; to clear all overrides and switches, add"
    assert (answer.code, answer.out, answer.err) == (1, [], [f"ratelimit_mw: {asks} --yes"])
    assert front.run("override", "clear", "--all", "--yes").code == 0
    assert front.run("override", "clear", "--all").code == 1  # nothing is left


def test_an_address_of_a_network_that_is_one_client_is_noted(front: Front) -> None:
    assert front.get(CLIENT) == [200]
    wide = "limits count the network 2001:db8::/64 as one client (ipv6_prefix), and this concerns only a part of it; "
    note = f"{wide}for all of it, use --ip 2001:db8::/64"
    for address, notes in (("2001:db8::7", [note]), ("2001:db8::/64", []), (CLIENT, [])):
        answer = front.run("override", "set", "--ip", address, "--block", "--for", "1h")
        assert (answer.code, answer.err) == (0, [*notes, FOLLOW])


CHOICE = "override set: got {}, expected one of {}"
ACTIONS, CLIENTS = "--limits, --exempt and --block", "--ip, --user, --header and --key"
MISTAKES = {
    "--user bob --exempt --block": CHOICE.format("--exempt and --block", ACTIONS),
    "--user bob": CHOICE.format("none of them", ACTIONS),
    "--exempt": CHOICE.format("none of them", CLIENTS),
    "--user bob --ip 192.0.2.7 --exempt": CHOICE.format("--ip and --user", CLIENTS),
    "--user bob --limits 5/fortnight": "--limits: '5/fortnight': unknown period 'fortnight'",
    "--ip 192.0.2 --exempt": "--ip: got '192.0.2', expected a network such as '10.0.0.0/8'",
    "--user bob --exempt --rule default": (
        "override: user=bob has no effect, because no key of the rule default reads 'user': 'ip'; describe the client"
    ),
    "--ip 192.0.2.7 --exempt --for 400d": "--for: got '400d', expected a time such as 30s, 15m, 2h or 1d, up to 366d",
    "--user bob --exempt --rule sear": "--rule: got 'sear', expected one of app, default, preflight",
}


def test_a_mistake_in_the_words_is_an_error_with_its_place(front: Front) -> None:
    answers = {words: front.run("override", "set", *words.split()) for words in MISTAKES}
    assert {words: (one.code, one.out) for words, one in answers.items()} == dict.fromkeys(MISTAKES, (1, []))
    texts = {words: one.err[0].removeprefix("ratelimit_mw: ") for words, one in answers.items()}
    assert {words: text[: len(MISTAKES[words])] for words, text in texts.items()} == MISTAKES
    rest = "; for a limit on an endpoint its name with an `@`, as `keys` shows it"
    assert texts["--user bob --exempt --rule sear"].endswith(rest if front.name == "file" else ", messages, @search")


class Commands:
    """The command line over a file of settings, with a rule by user and one by address."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        SQLiteStore(folder / "limits.db").close()
        self.path = folder / "limits.json"
        login = {"name": "login", "path": "/login", "limits": "1/hour", "key": "ip"}
        self.settings: dict[str, Any] = {
            "limits": "5/minute",
            "key": "user | ip",
            "store": f"sqlite://{folder}/limits.db",
        }
        self.settings |= {"store_timeout": 5.0, "app_limits": {"limit": "9/minute", "key": "all"}, "rules": [login]}
        self.write()

    def write(self, **more: Any) -> None:
        self.path.write_text(json.dumps({**self.settings, **more}))

    def run(self, *words: str) -> Answer:
        end = 2 if words[0] == "override" else 1
        code = main([*words[:end], str(self.path), *words[end:]])
        out, err = self._capsys.readouterr()
        return Answer(code, out.splitlines(), err.splitlines())


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, capsys)


def count_request(settings: dict[str, Any], path: str, user: str) -> int:
    app = RateLimitMiddleware(PlainTextResponse("found"), settings)
    scope = {**scope_from_parts("GET", path.encode(), [], (CLIENT, 1), user), "state": {}}

    async def get() -> int:
        client = AsyncClient(transport=ASGITransport(lambda _, *rest: app(scope, *rest)), base_url="http://test")
        async with client:
            return (await client.get(path)).status_code

    return asyncio.run(get())


def test_an_override_of_a_user_for_whom_nothing_is_counted_says_so(commands: Commands) -> None:
    assert count_request(commands.settings, "/", "7") == 200
    note = "nothing is counted for user=ann: is that how the app names this user; `user` is the first of "
    for user, notes in (("7", 0), ("ann", 1)):
        found = commands.run("override", "set", "--user", user, "--exempt")
        assert (found.code, sum(line.startswith(note) for line in found.err)) == (0, notes)
    assert "nothing is counted" not in str(commands.run("override", "set", "--ip", CLIENT, "--exempt").err)


def test_peek_says_which_limit_an_exemption_does_not_cover(commands: Commands) -> None:
    assert commands.run("override", "set", "--user", "7", "--exempt").code == 0
    assert count_request(commands.settings, "/login", "7") == 200
    (line,) = [
        one for one in commands.run("peek", "--request", "/login", "--ip", CLIENT, "--user", "7").err if "id" in one
    ]
    assert line == (
        f"login refuses, although override id1 exempts user=7: login counts by ip, as ip={CLIENT}; exempt that, too"
    )


def test_clearing_a_set_with_another_mac_says_so(commands: Commands) -> None:
    commands.write(key_secret="a secret of 32 characters, or more")
    assert commands.run("override", "set", "--ip", CLIENT, "--block").code == 0
    commands.write()
    cleared = commands.run("override", "clear", "--all", "--yes")
    assert cleared.code == 0
    assert cleared.err[0].startswith("cleared a set with a MAC of another key_secret, or none, which these settings")
    assert commands.run("override", "clear", "--all", "--yes").code == 1
