"""Tests HTTP/2 clients through a real nginx: each stream of a connection counts as a request."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

import tls
from served.test_beside_nginx import NGINX, Nginx
from web.real_servers import APPS
from web_servers import serve_uvicorn

pytestmark = [
    pytest.mark.skipif(
        NGINX is None,
        reason="no nginx to go through; type: sudo apt-get install nginx-light (macOS: brew install nginx)",
    ),
]

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl http2;
        ssl_certificate {folder}/chain.pem;
        ssl_certificate_key {folder}/key.pem;
        location / {{
            proxy_pass {app};
            proxy_set_header X-Forwarded-For 192.0.2.7;
        }}
    }}
}}
"""
PATIENCE = 60.0  # seconds


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Yield the URL of nginx, and an SSL context that trusts its certificate."""
    folder = tmp_path_factory.mktemp("nginx")
    files = tls.made_in(folder)
    with serve_uvicorn("behind_asgi:app", APPS, "--no-access-log") as app:
        nginx = Nginx(folder, app.url, CONFIG)
        try:
            nginx.wait_ready()
            yield f"https://127.0.0.1:{nginx.port}", ssl.create_default_context(cafile=files.authority)
        finally:
            nginx.stop()


def asked(client: tuple[str, ssl.SSLContext], *paths: str, headers: dict[str, str] | None = None) -> Counter[int]:
    """Send requests concurrently, as streams of one connection, and return the counts of their statuses."""
    url, context = client

    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(http1=False, http2=True, verify=context, timeout=PATIENCE) as connection:
            every = [connection.get(url + path, headers=headers) for path in paths]
            return await asyncio.gather(*every)

    answers = asyncio.run(main())
    assert {answer.http_version for answer in answers} == {"HTTP/2"}
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
    assert all("ratelimit" in answer.headers for answer in answers)
    return Counter(answer.status_code for answer in answers)


def test_streams_of_one_connection_are_limited_each(client: tuple[str, ssl.SSLContext]) -> None:
    assert asked(client, *["/login"] * 100) == {200: 5, 429: 95}


def test_forged_addresses_do_not_change_the_bucket(client: tuple[str, ssl.SSLContext]) -> None:
    headers = {"X-Forwarded-For": "203.0.113.1", "X_Forwarded_For": "203.0.113.2", "Forwarded": "for=203.0.113.3"}
    assert asked(client, *["/forged"] * 4, headers=headers) == {200: 4}
    assert asked(client, *["/forged"] * 4) == {200: 1, 429: 3}


def test_spellings_of_a_path_share_one_limit(client: tuple[str, ssl.SSLContext]) -> None:
    paths = ["/spelt", "//spelt", "/./spelt", "/a/../spelt", "/%73pelt", "/spelt/", "/spelt?a", "/spelt%2F"]
    assert asked(client, *paths * 2) == {200: 5, 429: 11}
