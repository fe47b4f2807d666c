"""Tests the live page in a real browser, with made data. Screenshots: docs/_build/screenshots."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from browser.axe import axe_source, serious_findings
from browser.dashboard_page import ANSWERS, AT, Served, data_of_an_attack, serve_page
from browser.devtools import BEYOND, WITHIN, Page, browser

SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs/_build/screenshots"
SHOWN = "document.querySelectorAll('#rule-rows tr').length > 0"
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
ROWS = "[...document.querySelectorAll('{} > *')].map((row) => row.innerText)"
FOCUS = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText).trim()"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with browser(tmp_path) as page:
        yield page


def changed(**fields: Any) -> Callable[[int, str | None], dict[str, Any]]:
    """Return what makes the data of an attack, with other fields."""
    return lambda seconds, rule: data_of_an_attack(seconds, rule) | fields


def serve(**fields: Any) -> AbstractContextManager[Served]:
    return serve_page(changed(**fields), ANSWERS)


def look(page: Page, served: Served, width: int = 1300) -> None:
    page.open(served.url, width)
    page.until(SHOWN)


def text(page: Page, selector: str) -> str:
    found = page.value(f"document.querySelector({selector!r}).innerText")
    assert isinstance(found, str), selector
    return found


def click(page: Page, label: str) -> None:
    """Click the button with this label or text, which is visible."""
    buttons = "[...document.querySelectorAll('button')].filter((one) => one.checkVisibility())"
    wanted = f"{buttons}.find((one) => (one.getAttribute('aria-label') ?? one.innerText).startsWith({label!r}))"
    page.until(f"!!{wanted}")
    page.value(f"{wanted}.click()")


def last_post(page: Page, served: Served, path: str) -> dict[str, Any]:
    """Wait for another POST to this path, and return its body."""
    page.until("!document.querySelector('dialog[open]')")
    return [body for posted, body in served.posted if posted == path][-1]


def until_posted(page: Page, served: Served, path: str, body: dict[str, Any]) -> None:
    """Wait until the last POST to this path has this body, where no dialog ends with it."""
    deadline = time.monotonic() + WITHIN
    while last_post(page, served, path) != body:
        assert time.monotonic() < deadline, served.posted


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_its_dialogs_fit_and_have_nothing_serious(page: Page, width: int, scheme: str) -> None:
    axe = axe_source()
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    with serve() as served:
        look(page, served, width)
        click(page, "Look at 192.0.2.22")
        page.until("document.querySelectorAll('.bucket').length === 2")
        page.value("scrollTo(0, 0)")
        page.until("document.querySelectorAll('#chart canvas').length === 1")
        page.save(SCREENSHOTS / f"dashboard-{scheme}-{width}.png")
        for opened in (
            "",
            "Change the rule login",
            "Stop refusing",
            "Block 192.0.2.22",
            "Reset 192.0.2.22",
            "End shadow",
        ):
            if opened:
                click(page, opened)
                page.until("!!document.querySelector('dialog[open]')")
                page.until("!document.querySelector('#change[open]') || !!document.querySelector('#peaks canvas')")
                page.save(SCREENSHOTS / f"dashboard-{opened.split()[0].lower()}-{scheme}-{width}.png")
            assert (opened, serious_findings(page, axe)) == (opened, [])
            assert (opened, page.value(BEYOND)) == (opened, [])
            assert page.value("document.documentElement.scrollWidth") <= width
            page.value("document.querySelector('dialog[open]')?.close()")
        assert page.messages == []
        assert [url for url in page.requested if not url.startswith((served.url, "data:"))] == []


def test_page_shows_what_the_data_says(page: Page) -> None:
    with serve() as served:
        look(page, served)
        assert text(page, "h1") == "shop rate limits"
        assert text(page, "#store") == "Redis replies, 0.4 ms"
        assert text(page, "#processes") == "4 processes"
        assert text(page, "#digests").strip() == "settings c45ec6ea"
        assert text(page, "#clock") == "11:42:31 UTC"
        assert text(page, "#notice p").startswith("login refuses 92 % of its requests since 11:39:06. 13 addresses")
        last, sums = served_rows(300)
        assert page.value(ROWS.format("#tiles")) == [
            f"requests\n{sum(last):.0f} /s\n182/s this time yesterday",
            f"refused\n{last[1]:.0f} /s\n{100 * last[1] / sum(last):.0f} %; 0.1 % yesterday",
            "clients limited now\n16\n14 of them by login",
            "Redis, 99 of 100 calls within\n0.9 ms\nlimit 50 ms",
            "decided without Redis\n0 /s",
            "waiting\n2\nin the queue of export",
        ]
        assert text(page, "#pointed") == f"last 5 min: {sums[0]:,} admitted, {sums[1]:,} refused"
        names = "[...document.querySelectorAll('#rule-rows .rule')].map((one) => one.innerText)"
        assert page.value(names) == ["login", "search", "default", "reports", "healthz"]  # shadow rules after others
        assert page.value(ROWS.format("#rule-rows"))[0].split() == [
            *("login", "5/minute;", "20/hour", "POST", "/login", "38", "92", "%", "14", "Change", "…"),
        ]
        assert page.value(ROWS.format("#rule-rows"))[4].split()[-3:] == ["\u2013", "0", "0"]  # counted elsewhere
        clients = page.value(ROWS.format("#client-rows"))
        assert clients[0].split() == [
            *("198.51.100.20", "84", "user", "agents:", "an", "office?", "login", "576", "41", "min"),
            *("Look", "Reset", "…", "Block", "…"),
        ]
        assert clients[-1].split()[:4] == ["user", "48213", "search", "12"]
        assert text(page, "#tail li").split() == ["11:42:31", "192.0.2.10", "POST", "/login", "login"]
        assert text(page, "#sampled") == "1 of 9 shown"
        assert text(page, "#change-rows li").split("\n")[:3] == [
            *("11:38:04", "ann: switch shadow reports for 15m", "ticket 4711"),
        ]
        assert "Signed in as ann (operator), session ends at 12:30:00." in text(page, "footer")
        assert page.value("document.title").endswith("refused/s · shop")
        assert page.messages == []


def test_page_shows_who_is_blocked_and_cuts_hashes(page: Page) -> None:
    attack, hashed = data_of_an_attack(300), "638b0f1d5e5439c5148d1817a9d3d01d"
    blocked = {**attack["refused_most"][0], "key": hashed, "blocked": "b10c", "note": ""}
    block = {**attack["overrides"][0], "id": "b10c", "who": f"key={hashed}", "action": "block", "rule": None}
    step = {"do": "block", "who": {"key": hashed}}
    data = changed(
        rules=[{**attack["rules"][0], "rule": "blocklist", "mode": "blocklist", "key": "", "match": "blocked clients"}],
        refused_most=[blocked],
        refusals=[{**attack["refusals"][0], "key": hashed}],
        overrides=[{**block, "until": AT + 600}],
        problem={"kind": "refusing", "text": "login refuses.", "more": f"{hashed} is refused.", "steps": [step]},
    )
    with serve_page(data, ANSWERS) as served:
        look(page, served)
        assert text(page, "#notice").split("\n\n") == [
            "login refuses. 638b0f1d5e54 is refused.",
            "Block 638b0f1d5e54 …",
        ]
        assert text(page, "#tail li").split() == ["11:42:31", "638b0f1d5e54", "POST", "/login", "login"]
        assert text(page, "#client-rows").split()[-5:] == ["Look", "Reset", "…", "Unblock", "…"]
        assert "blocked, 10 min" in text(page, "#client-rows")
        assert "Change" not in text(page, "#rule-rows")
        click(page, "Unblock")
        page.value("document.querySelector('#asking form').requestSubmit()")
        assert last_post(page, served, "change") == {"do": "clear", "id": "b10c", "note": ""}


def served_rows(seconds: int) -> tuple[list[float], list[int]]:
    """Return admitted and refused requests: their rate in the last seconds that are settled, and their sum."""
    rows = data_of_an_attack(seconds)["series"]
    return (
        [sum(row[place] for row in rows[-7:-2]) / 5 for place in (1, 2)],
        [sum(row[place] for row in rows) for place in (1, 2)],
    )


def test_hostile_names_show_as_text(page: Page) -> None:
    attack = data_of_an_attack(300)
    rule = {**attack["rules"][0], "rule": HOSTILE, "match": HOSTILE, "limits": HOSTILE, "key": HOSTILE}
    client = {**attack["refused_most"][0], "key": f"user={HOSTILE}", "rule": HOSTILE, "note": HOSTILE}
    refusal = {"id": HOSTILE, "at": AT, "key": HOSTILE, "rule": HOSTILE, "method": HOSTILE, "path": HOSTILE}
    change = {**attack["changes"][0], "by": HOSTILE, "what": HOSTILE, "note": HOSTILE}
    override = {**attack["overrides"][0], "who": f"key={HOSTILE}", "rule": HOSTILE, "note": HOSTILE, "by": HOSTILE}
    problem = {"kind": "refusing", "text": HOSTILE, "more": HOSTILE, "steps": [{"do": "change", "rule": HOSTILE}]}
    answers = {
        **ANSWERS,
        "look": {**ANSWERS["look"], "why": [HOSTILE], "client": HOSTILE},
        "preview": {**ANSWERS["preview"], "warning": HOSTILE, "toml": HOSTILE},
        "change": {"done": HOSTILE, "id": HOSTILE},
    }
    data = changed(
        rules=[rule],
        refused_most=[client],
        refusals=[refusal],
        changes=[change],
        overrides=[override],
        problem=problem,
        name=HOSTILE,
        digests=[HOSTILE],
        waiting=[{"rule": HOSTILE, "waiting": 1}],
        limited={"clients": 1, "rule": HOSTILE, "of_rule": 1},
    )
    with serve_page(data, answers) as served:
        for width in (1300, 390):
            look(page, served, width)
            click(page, "Look at")
            page.until("document.querySelectorAll('.bucket').length === 2")
            click(page, "Change the rule")
            page.until("!!document.querySelector('#peaks canvas')")
            page.value("document.querySelector('dialog[open]').close()")
            click(page, "Block")
            page.value("document.querySelector('#asking form').requestSubmit()")
            page.until("!document.querySelector('#done').hidden")
            elements = "['#rules', '#clients', '#live', '#look', '#log', '#notice', '#done', '#change', 'h1']"
            for selector in page.value(elements):
                assert HOSTILE in page.value(f"document.querySelector({selector!r}).textContent"), selector
            assert page.value("document.querySelectorAll('img, body script').length") == 0
            assert page.value("document.title").endswith(f"· {HOSTILE}")
            assert page.value(BEYOND) == []
            assert page.value("document.documentElement.scrollWidth") <= width
        assert page.messages == []


def test_keyboard_reaches_all_and_focus_stays_in_a_dialog(page: Page) -> None:
    with serve() as served:
        look(page, served)
        seen = []
        for _ in range(60):
            page.press("Tab")
            seen.append(page.value(FOCUS))
            if seen[-1] == "Sign out":
                break
        for wanted in (
            *("Skip to the rules", "Pause", "Stop refusing …", "Change login …", "Block 192.0.2.0/24 …"),
            *("Rule of the chart", "Change the rule login …", "Filter clients by their name or rule"),
            *("Look at 192.0.2.22", "Reset 192.0.2.22 in login …", "Block 192.0.2.22 …", "Method and path"),
            *("Refusals, the newest first", "Undo switch shadow reports for 15m", "Sign out"),
        ):
            assert wanted in seen
        page.value("document.querySelector('[aria-label^=\"Change the rule login\"]').focus()")
        page.press("Enter")
        page.until("document.querySelector('#change').open")
        assert page.value("document.activeElement.innerText") == "login"  # its title, which a screen reader reads
        page.press("Tab")
        assert page.value("document.activeElement.value") == "on"
        page.press("ArrowRight")
        page.until("document.querySelector('input[value=shadow]').checked")
        inside = "document.activeElement === document.body || !!document.activeElement.closest('#change')"
        for _ in range(12):
            page.press("Tab")
            assert page.value(inside)
        page.press("Escape")
        page.until("!document.querySelector('dialog[open]')")
        assert page.value(FOCUS) == "Change the rule login …"
        assert [path for path, _ in served.posted if path == "change"] == []
        page.value("document.activeElement.blur()")
        page.press("/")
        page.until("document.activeElement.id === 'filter'")
        assert page.value("document.activeElement.value") == ""
        page.value("document.activeElement.blur()")
        page.press(" ")
        page.until("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
        assert text(page, "#pause") == "Go on"
        assert page.messages == []


def test_a_rule_is_changed(page: Page) -> None:
    with serve() as served:
        look(page, served)
        click(page, "Change the rule login")
        page.until("document.querySelector('#preview-now').innerText === '6,490 refused'")
        assert served.posted == [("preview", {"rule": "login", "state": "on", "limits": "5/minute; 20/hour"})]
        assert text(page, "#change-apply") == "Apply to 4 processes"
        assert page.value("document.querySelector('#change-apply').disabled")
        assert text(page, "#change-quota-part") == "Quota per hour: 20"
        slide = "Object.assign(document.querySelector('#change-quota'), {value: 40}).dispatchEvent(new Event('input'))"
        page.value(slide)
        assert page.value("document.querySelector('#change-limits').value") == "5/minute; 40/hour"
        page.until("document.querySelector('#preview-then-limits').innerText.includes('40/hour')")
        assert served.posted[1:] == [("preview", {"rule": "login", "state": "on", "limits": "5/minute; 40/hour"})]
        page.value("document.querySelector('#change-for').value = 3600")
        page.value("document.querySelector('#change-note').value = 'ticket 4712'")
        page.value("document.querySelector('#change-apply').click()")
        limits = {"do": "limits", "limits": "5/minute; 40/hour", "rule": "login", "for": 3600, "note": "ticket 4712"}
        assert last_post(page, served, "change") == limits
        page.until("document.querySelector('#done').innerText.startsWith('Done: switch shadow login for 15m')")
        page.value("document.querySelector('#done button').click()")
        until_posted(page, served, "change", {"do": "undo", "id": "c9", "note": ""})
        click(page, "Change the rule login")
        page.value("document.querySelector('input[value=off]').click()")
        page.value("document.querySelector('#change-apply').click()")
        assert last_post(page, served, "change") == {
            "do": "switch",
            "state": "off",
            "rule": "login",
            "for": 900,
            "note": "",
        }
        assert page.messages == []


def test_a_mistake_in_limits_is_shown_at_the_field(page: Page) -> None:
    answers = {**ANSWERS, "preview": {"mistake": "limits: unknown period"}}
    with serve_page(changed(), answers) as served:
        look(page, served)
        click(page, "Change the rule login")
        page.until("document.querySelector('#change-mistake').innerText === 'limits: unknown period'")
        assert page.value("document.querySelector('#change-limits').getAttribute('aria-invalid')") == "true"
        assert page.value("document.querySelector('#change-apply').disabled")


def test_refusing_is_stopped_after_the_name_is_typed(page: Page) -> None:
    with serve() as served:
        look(page, served)
        click(page, "Stop refusing")
        cost = "In the last minute this would have admitted 2,222 more requests, 95 % of them of login (POST /login)."
        assert text(page, "#stopping-cost") == cost
        assert page.value("document.activeElement.id") == "stopping-typed"
        page.press("Enter")
        for letter in "shop":
            assert page.value("document.querySelector('#stopping-apply').disabled")
            page.press(letter)
        page.press("Enter")
        assert last_post(page, served, "change") == {
            "do": "switch",
            "state": "shadow",
            "rule": None,
            "for": 900,
            "note": "",
        }
    switched = {**data_of_an_attack(300)["overrides"][0], "rule": None}
    with serve(overrides=[switched], problem=None) as served:
        look(page, served)
        assert text(page, "#notice p").startswith(
            "No request is refused. ann switched all rules to shadow (ticket 4711); ends at 11:53:11."
        )
        assert page.value("document.querySelector('#stop').hidden")
        click(page, "Refuse again")
        page.value("document.querySelector('#asking form').requestSubmit()")
        assert last_post(page, served, "change") == {"do": "clear", "id": "o1", "note": ""}


def test_a_client_is_looked_at_reset_and_blocked(page: Page) -> None:
    with serve() as served:
        look(page, served)
        click(page, "Look at 192.0.2.22")
        page.until("document.querySelectorAll('.bucket').length === 2")
        assert text(page, ".bucket").split("\n")[:2] == ["login 5 per minute", "0 of 5 left"]
        assert served.posted == [("look", {"key": "ip=192.0.2.22", "rule": "login"})]
        click(page, "Reset them")
        page.value("document.querySelector('#asking-note').value = 'an office'")
        page.value("document.querySelector('#asking form').requestSubmit()")
        reset = {"do": "reset", "key": "ip=192.0.2.22", "rule": "login", "note": "an office"}
        assert last_post(page, served, "change") == reset
        click(page, "Block 192.0.2.0/24")
        page.value("document.querySelector('#asking-rule').value = 'login'")
        page.value("document.querySelector('#asking form').requestSubmit()")
        assert last_post(page, served, "change") == {
            "do": "override",
            "action": "block",
            "who": {"ip": "192.0.2.0/24"},
            "note": "",
            "for": 900,
            "rule": "login",
        }
        page.value("document.querySelector('#filter').value = '48213'")
        page.value("document.querySelector('#filter').dispatchEvent(new Event('input'))")
        page.until("document.querySelectorAll('#client-rows tr').length === 1")
        click(page, "Block user 48213")
        page.value("document.querySelector('#asking form').requestSubmit()")
        assert last_post(page, served, "change")["who"] == {"user": "48213"}
        assert page.messages == []


def test_viewers_have_no_buttons_that_change_something(page: Page) -> None:
    with serve(write=False, you={"name": None, "role": "viewer", "until": None}) as served:
        look(page, served)
        shown = "[...document.querySelectorAll('button')].filter((one) => one.checkVisibility())"
        assert set(page.value(f"{shown}.map((one) => one.innerText)")) == {"Pause", "Look"}
        assert text(page, "footer").endswith("You are a viewer.")


def test_page_says_that_the_store_is_away(page: Page) -> None:
    store = {
        "state": "away",
        "kind": "Redis",
        "since": AT - 41,
        "p99": 0.1,
        "without": 170.0,
        "meaning": "The app serves all.",
    }
    problem = {"kind": "store", "text": "Redis has not replied since 11:41:50.", "more": "The app serves all."}
    with serve(store=store, problem=problem) as served:
        look(page, served)
        page.save(SCREENSHOTS / "dashboard-away.png")
        assert text(page, "#store") == "Redis does not reply"
        assert text(page, "#notice p") == "Redis has not replied since 11:41:50. The app serves all."
        assert text(page, "#said") == "Redis has not replied since 11:41:50. The app serves all."
        tiles = page.value(ROWS.format("#tiles"))
        assert tiles[3:5] == [
            "Redis, 99 of 100 calls within\n\u2013 ms\nno reply",
            "decided without Redis\n170 /s\ncounted in each process",
        ]
        click(page, "What to do")
        page.until("document.querySelector('#advice').open")


def test_page_says_that_its_server_does_not_answer_and_goes_on(page: Page) -> None:
    with serve() as served:
        look(page, served)
    page.until("document.querySelector('#notice p').innerText.includes('has not answered since')")
    assert [entry for entry in page.messages if "net::ERR" not in str(entry)] == []


def test_hidden_tabs_ask_nothing(page: Page) -> None:
    with serve() as served:
        look(page, served)
        page.until(
            "performance.getEntriesByType('resource').filter((one) => one.name.includes('data.json')).length > 2"
        )
        hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
        page.value(f"{hide.format('true')}; document.dispatchEvent(new Event('visibilitychange'))")
        page.value("new Promise((done) => setTimeout(done, 1500))")  # a question under way ends
        before = len(served.asked)
        page.value("new Promise((done) => setTimeout(done, 2500))")
        assert len(served.asked) == before
        page.value(f"{hide.format('false')}; document.dispatchEvent(new Event('visibilitychange'))")
        page.value("new Promise((done) => setTimeout(done, 500))")
        assert len(served.asked) > before


def test_chart_shows_longer_times_and_one_rule(page: Page) -> None:
    with serve() as served:
        look(page, served)
        page.value("document.querySelector('input[value=\"86400\"]').click()")
        _, sums = served_rows(86400)
        page.until(
            f"document.querySelector('#pointed').innerText === 'last 24 h: {sums[0]:,} admitted, {sums[1]:,} refused'"
        )
        assert text(page, "#traffic-title") == "Requests per minute"
        pick = "Object.assign(document.querySelector('#pick'), {value: 'login'}).dispatchEvent(new Event('change'))"
        page.value(pick)
        rows = data_of_an_attack(86400, "login")["series"]
        sums = [sum(row[place] for row in rows) for place in (1, 2)]
        page.until(
            f"document.querySelector('#pointed').innerText === 'last 24 h: {sums[0]:,} admitted, {sums[1]:,} refused'"
        )
        queries = [query for query in served.asked if query != {"seconds": "300", "clients": "600"}]
        assert queries == [{"seconds": "86400"}, {"seconds": "86400", "rule": "login"}]
        assert page.messages == []
