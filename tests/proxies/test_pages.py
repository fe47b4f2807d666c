"""Tests the lines that the proxies' pages print for a secret, and their nginx in front of the middleware."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from proxies.programs import KINDS, PAGES, found, missing, proxy, running, served
from proxies.test_proxies import ask
from redis_servers import free_port
from web.real_servers import APPS
from web_servers import serve_uvicorn

SECRET = "sixteen-letters!"
SETTINGS = 'limits = "9/day using fixed_window"\ntrusted_proxies = ["127.0.0.1"]\n'
PRINTED = re.compile(r'`([^`\n]*secret[^`\n]*"\.\.\."[^`\n]*)`', re.IGNORECASE)
AFTER = {  # by proxy: the text of the configuration that precedes the line
    "nginx": "location = /_ratelimit {\n",
    "caddy": "rewrite /v1/forward\n",
    "haproxy": 'headers["x-forwarded-for"] = { [0] = txn.sf:src() }\n',
    "envoy": "http_service:\n                ",
    "envoy-grpc": "grpc_service: { ",
}
END = {"envoy": "\n                ", "envoy-grpc": ", "}


@pytest.fixture(scope="module")
def app() -> Iterator[int]:
    with serve_uvicorn("proxied_asgi:bare", APPS, "--no-access-log") as server:
        yield int(server.url.rpartition(":")[2])


def with_secret(kind: str, text: str) -> str:
    """Return the file with the line for the secret that the page of this proxy prints."""
    page = (PAGES / KINDS[kind].page).read_text("utf-8")
    line = PRINTED.findall(page)[KINDS[kind].block].replace("...", SECRET)
    return text.replace(AFTER[kind], f"{AFTER[kind]}{line}{END.get(kind, chr(10))}")


@pytest.mark.parametrize("kind", list(KINDS))
def test_proxy_sends_the_secret_with_the_line_of_its_page(kind: str, app: int, tmp_path: Path) -> None:
    if found(kind) is None:
        pytest.skip(missing(kind))
    (tmp_path / "secret.txt").write_text(SECRET)
    grpc = free_port()
    options = ["--secret-file", "secret.txt", *(["--grpc", f"127.0.0.1:{grpc}"] if kind == "envoy-grpc" else [])]
    with served(tmp_path, SETTINGS, *options) as (service, _):
        ports = {"app": app, "service": service, "grpc": grpc}
        with proxy(kind, tmp_path, ports, change=lambda text: with_secret(kind, text)) as port:
            seen = [
                ask(kind, port, "GET", "/x"),
                ask(kind, port, "GET", "/x", X_RateLimit_Secret="of a client"),  # the proxy replaces it
            ]
    assert [(one.status, one.fields["ratelimit"]) for one in seen] == [
        (200, '"default";r=8;t=DAY'),
        (200, '"default";r=7;t=DAY'),
    ]


class Printed(NamedTuple):
    """The printed configuration for nginx in front of the middleware: its location, and settings of the app."""

    location: str
    settings: str


def printed(*, single: bool) -> Printed:
    """Return the printed configuration. `single`: the variant whose header has one address."""
    page = (PAGES / "proxies.md").read_text("utf-8")
    tab = page.partition("{tab-item} nginx\n")[2].partition("\n:::::\n")[0]
    location = textwrap.dedent("".join(re.findall(r"^(?: {4}.*\n)+", tab, re.MULTILINE)[0]))
    appending, one = re.findall(r"^```toml\n(.*?)^```$", tab, re.MULTILINE | re.DOTALL)
    if not single:
        return Printed(location, appending)
    (line,) = re.findall(r"`(proxy_set_header X-Real-IP [^`]*)`", tab)
    replaced = re.sub(r"^ *proxy_set_header X-Forwarded-For .*$", line, location, flags=re.MULTILINE)
    return Printed(replaced, one)


@pytest.mark.promise(10)
@pytest.mark.parametrize("single", [False, True])
def test_printed_nginx_in_front_of_the_middleware_ignores_forged_addresses(single: bool, tmp_path: Path) -> None:
    if found("nginx") is None:
        pytest.skip(missing("nginx"))
    location, settings = printed(single=single)
    (tmp_path / "limits.toml").write_text(settings)
    port = free_port()
    env = {"TEST_LIMITS": str(tmp_path / "limits.toml")}
    with serve_uvicorn("proxied_asgi:limited", APPS, "--no-access-log", "--no-proxy-headers", env=env) as limited:
        app = limited.url.rpartition(":")[2]
        inside = location.replace("127.0.0.1:8000", f"127.0.0.1:{app}")
        files = {"nginx": f"http {{\nserver {{\nlisten 127.0.0.1:{port};\n{inside}}}\n}}\n"}
        with running("nginx", tmp_path, files, port):
            forged = {"X_Forwarded_For": "203.0.113.9", "X_Real_IP": "203.0.113.9"}
            seen = [
                ask("nginx", port, "GET", "/"),
                ask("nginx", port, "GET", "/", **forged),
                ask("caddy", port, "GET", "/"),  # another client
            ]
    left = [one.fields["ratelimit"].split(";")[1] for one in seen]
    assert left == ["r=99", "r=98", "r=99"]
