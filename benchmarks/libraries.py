"""The libraries that are attacked, and how the app of each is served."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attacks.attack import Served, Target  # in tests/attacks; `benchmarks.attacks` has put tests on the path
from web_servers import WebServer, serve_gunicorn, serve_uvicorn

ROOT: Final = Path(__file__).resolve().parents[1]
APPS: Final = ROOT / "tests" / "apps"
ATTACKED: Final = Path(__file__).resolve().parent / "attacked"
_PLAIN: Final = ("--http", "h11")  # the parser that uvicorn always installs
_MINE: Final = (*_PLAIN, "--no-proxy-headers")
_THREADS: Final = ("--worker-class", "gthread", "--threads", "4")

Serve = Callable[..., AbstractContextManager[WebServer]]


@dataclass(frozen=True)
class Library:
    """A limiter, the server of its app, and the server's options without a proxy (`direct`) and `behind` one."""

    name: str
    module: str
    packages: Sequence[str]
    app: str
    folder: Path
    serve: Serve = serve_uvicorn
    direct: Sequence[str] = _MINE
    behind: Sequence[str] = _MINE
    lacks: frozenset[str] = frozenset({"/any", "/door", "/guarded"})  # only this package's app has these routes
    note: str = ""

    @contextmanager
    def served(self) -> Iterator[Target]:
        """Serve the app twice: without a proxy and behind one."""
        with ExitStack() as running:
            stands = []
            for stand, options in (("direct", self.direct), ("behind", self.behind)):
                env = {"STAND": stand, "PYTHONPATH": f"{APPS}:{ROOT}"}
                server = running.enter_context(self.serve(f"{self.app}:app", self.folder, *options, env=env))
                stands.append(Served(int(server.url.rpartition(":")[2]), server.output))
            yield Target(stands[0], stands[1], self.lacks)


LIBRARIES: Final = (
    Library(
        "ratelimit_mw", "ratelimit_mw", ("ratelimit-mw", "fastapi", "uvicorn"), "attacked_asgi", APPS, lacks=frozenset()
    ),
    Library(
        "slowapi",
        "slowapi",
        ("slowapi", "limits", "fastapi", "uvicorn"),
        "on_slowapi",
        ATTACKED,
        behind=_PLAIN,  # slowapi leaves the proxy to uvicorn, which trusts 127.0.0.1
        note='`SlowAPIMiddleware`, `default_limits`, `@limiter.limit`; `key_style` is the default, "url"',
    ),
    Library(
        "flask-limiter",
        "flask_limiter",
        ("flask-limiter", "limits", "flask", "gunicorn"),
        "on_flask_limiter",
        ATTACKED,
        serve=serve_gunicorn,
        direct=_THREADS,
        behind=_THREADS,
        note="`default_limits`, `@limiter.limit`; behind the proxy `ProxyFix(x_for=1)`",
    ),
    Library(
        "asgi-ratelimit",
        "ratelimit",
        ("asgi-ratelimit", "fastapi", "uvicorn"),
        "on_asgi_ratelimit",
        ATTACKED,
        lacks=frozenset({"/spend", "/any", "/door", "/guarded"}),
        note="`MemoryBackend`, rules without a `zone`; behind the proxy its own `client_ip`",
    ),
)
