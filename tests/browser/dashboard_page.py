"""Serves the live page with data that a test makes, and keeps what the page posts."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

ASSETS = files("ratelimit_mw.dashboard").joinpath("assets")
UPLOT = files("ratelimit_mw.replay").joinpath("assets/uplot")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
Answer = dict[str, Any]


class Served(Struct):
    """The page. `url`: where. `posted`: the paths and bodies of its POSTs. `asked`: the queries for data, in order."""

    url: str
    posted: list[tuple[str, Answer]]
    asked: list[dict[str, str]]


@contextmanager
def serve_page(data: Callable[[int, str | None], Answer], answers: dict[str, Answer]) -> Iterator[Served]:
    """Serve the page. `data`: returns data.json for seconds and a rule. `answers`: to POSTs, by path."""
    served = Served("", [], [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            name = url.path.lstrip("/") or "index.html"
            if name == "data.json":
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                served.asked.append(query)
                self.answer(data(int(query["seconds"]), query.get("rule")))
                return
            folder = UPLOT if name.startswith("uPlot") else ASSETS
            self.send(folder.joinpath(name).read_bytes(), KINDS[name.rpartition(".")[2]])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["X-Token"] == "token"
            served.posted.append((self.path.lstrip("/"), body))
            self.answer(answers[self.path.lstrip("/")])

        def answer(self, body: Answer) -> None:
            self.send(json.dumps(body).encode(), "application/json")

        def send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_port}/"
        yield served
        server.shutdown()


AT = 1_795_693_351.4  # 2026-11-26 11:42:31 UTC


def row_of(second: int, *, attack: bool) -> list[int]:
    """Return admitted and refused requests of a second of an attack that began 205 seconds before `AT`."""
    wobble = (second * 7919) % 37
    began = attack and second > AT - 205
    return [second, 118 + wobble + (second % 97) // 4, (24 + wobble) if began else wobble // 18]


def data_of_an_attack(seconds: int, rule: str | None = None, *, attack: bool = True) -> Answer:
    """Return data.json of a shop whose login is attacked."""
    step = 1 if seconds <= 300 else 60
    last = int(AT) // step * step
    times = range(last - seconds + step, last + 1, step)
    share = {"login": 0.3, "search": 0.2}.get(rule or "", 1.0)
    rows = [[at, *(round(one * step * share) for one in row_of(at, attack=attack)[1:])] for at in times]
    spark = [3 + place % 5 if place > 18 else 0 for place in range(60)]
    few = [1 + place * 7 % 5 for place in range(60)]

    def rule_of(name: str, limits: str | None, match: str, mode: str, minute: list[int], **more: Any) -> Answer:
        sums = [one * 5 for one in minute]
        return {
            "rule": name,
            "admitted": sums[0],
            "refused": sums[1],
            "shadow": sums[2],
            "minute": minute,
            "limits": limits,
            "match": match,
            "key": "ip",
            "where": "rules[0] of limits.toml",
            "mode": mode,
            "until": None,
            "clients": 1,
            "spark": few,
            **more,
        }

    def client_of(key: str, rule: str, refused: int, free_in: float, note: str | None = None) -> Answer:
        counts = [refused // 60 + place % 3 if place > 12 else 1 for place in range(20)]
        return {"key": key, "rule": rule, "refused": refused, "spark": counts, "free_in": free_in, "note": note}

    return {
        "at": AT,
        "name": "shop",
        "processes": 4,
        "processes_known": 4,
        "digests": ["c45ec6ea"],
        "you": {"name": "ann", "role": "operator", "until": AT + 2849},
        "write": True,
        "token": "token",
        "plain_keys": True,
        "remember_refused": True,
        "store": {
            "state": "ok",
            "kind": "Redis",
            "since": None,
            "call": 0.0004,
            "p99": 0.0009,
            "timeout": 0.05,
            "without": 0.0,
            "meaning": "",
        },
        "problem": {
            "kind": "refusing",
            "text": "login refuses 92 % of its requests since 11:39:06.",
            "more": "13 addresses of 192.0.2.0/24 send 35 a second; the other 61 clients of login are admitted.",
            "steps": [{"do": "change", "rule": "login"}, {"do": "block", "who": {"ip": "192.0.2.0/24"}}],
        }
        if attack
        else None,
        "yesterday": [181.8, 0.2],
        "limited": {"clients": 16, "rule": "login", "of_rule": 14},
        "waiting": [{"rule": "export", "waiting": 2}],
        "series": rows,
        "rules": [
            rule_of("login", "5/minute; 20/hour", "POST /login", "on", [180, 2100, 0], clients=14, spark=spark),
            rule_of("search", "30/minute burst 10 using gcra", "/api/search", "on", [1056, 98, 0]),
            rule_of("reports", "10/hour", "/api/reports/*", "shadow", [170, 0, 30], until=AT + 640),
            rule_of("default", "120/minute", "all other paths", "on", [7200, 24, 0]),
            rule_of("healthz", None, "/healthz", "exempt", [0, 0, 0], clients=0, spark=[0] * 60),
        ],
        "refused_most": [
            client_of("ip=198.51.100.20", "login", 576, 2460, "84 user agents: an office?"),
            *(client_of(f"ip=192.0.2.{last}", "login", 479 - last, 2460) for last in (22, 20, 13, 11)),
            client_of("ip=109.70.100.8", "search", 388, 2),
            client_of("user=48213", "search", 12, 0),
        ],
        "refusals": [
            {
                "id": f"w{place}",
                "at": AT - place * 0.4,
                "key": f"ip=192.0.2.{10 + place * 5 % 13}",
                "rule": "login",
                "method": "POST",
                "path": "/login",
            }
            for place in range(40)
        ],
        "sampled": 9,
        "changes": [
            {"id": "c1", "at": AT - 267, "by": "ann", "what": "switch shadow reports for 15m", "note": "ticket 4711"}
            | {"undone": False, "can_undo": True},
            {"id": "c2", "at": AT - 5984, "by": "ben", "what": "reset ip=203.0.113.9", "note": ""}
            | {"undone": False, "can_undo": False},
            {"id": "c3", "at": AT - 69700, "by": "deployment", "what": "settings c45ec6ea", "note": ""}
            | {"undone": False, "can_undo": False},
        ],
        "overrides": [
            {"id": "o1", "rule": "reports", "who": "everyone", "action": "shadow", "limits": None, "until": AT + 640}
            | {"note": "ticket 4711", "by": "ann"}
        ],
    }


ANSWERS: dict[str, Answer] = {
    "change": {"done": "switch shadow login for 15m", "id": "c9"},
    "look": {
        "request": "POST /login",
        "client": "ip 198.51.100.20",
        "overrides": [],
        "buckets": [
            {"rule": "login", "name": name, "limit": limit, "key": "ip=198.51.100.20", "quota": quota, "remaining": 0}
            | {"retry_after": wait, "reset_after": wait * 2}
            for name, limit, quota, wait in (
                ("login", "5/60s using sliding_window_counter", 5, 38.0),
                ("login-2", "20/hour", 20, 2460.0),
            )
        ],
        "why": ["Matched rules[0] of limits.toml.", "The address was found in X-Forwarded-For, set by 10.0.0.4."],
    },
    "preview": {
        "seconds": 3600,
        "requests": 10991,
        "clients": 2235,
        "took": 0.4,
        "now": {"refused": 6490, "clients": 14},
        "then": {"refused": 6100, "clients": 13},
        "period": 3600,
        "quota": 20,
        "toml": '[[rules]]\nname = "login"\n',
        "peaks": [[1, 1210], [2, 480], [3, 270], [4, 150], [5, 70], [6, 30], [8, 8], [11, 3], [84, 1], [475, 13]],
        "warning": "The office 198.51.100.20 is admitted; the 13 others stay refused.",
    },
    "logout": {},
}
