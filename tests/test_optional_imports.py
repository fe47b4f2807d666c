"""What is not asked for is not imported."""

import subprocess
import sys

import pytest

OPTIONAL = ("redis", "hiredis", "starlette", "fastapi", "flask", "django", "werkzeug", "uvicorn")


@pytest.mark.promise(12)
@pytest.mark.parametrize("module", ["ratelimit_mw", "ratelimit_mw.asgi", "ratelimit_mw.wsgi", "ratelimit_mw.testing"])
def test_importing_brings_in_no_client_and_no_framework(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({OPTIONAL!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_redis_without_its_client_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from ratelimit_mw.asgi import RateLimitMiddleware\n"
        "RateLimitMiddleware(None, limits='1/minute', store='redis://localhost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "store: Redis needs its client, pip install 'ratelimit-mw[redis]'" in done.stderr
