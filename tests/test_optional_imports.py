"""What is not asked for is not imported."""

import subprocess
import sys

import pytest

CLIENTS = ("redis", "hiredis", "starlette", "fastapi", "flask", "django", "rest_framework", "werkzeug", "uvicorn")
OPTIONAL = (*CLIENTS, "pytest", "hypothesis")
MODULES = ("", ".asgi", ".wsgi", ".testing", ".testing.blocking", ".testing.laws")


@pytest.mark.promise(12)
@pytest.mark.parametrize("module", [f"ratelimit_mw{name}" for name in MODULES])
def test_importing_brings_in_no_client_and_no_framework(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({OPTIONAL!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_for_tests_is_imported_only_by_tests() -> None:
    code = (
        "import sys, ratelimit_mw, ratelimit_mw.asgi, ratelimit_mw.wsgi; print('ratelimit_mw.testing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_redis_without_its_client_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from ratelimit_mw.asgi import RateLimitMiddleware\n"
        "RateLimitMiddleware(None, limits='1/minute', store='redis://localhost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "store: Redis needs its client, pip install 'ratelimit-mw[redis]'" in done.stderr


def test_the_face_for_django_without_django_says_what_to_install() -> None:
    code = "import sys; sys.modules['django'] = None; import ratelimit_mw.django"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: ratelimit_mw.django needs Django 5.2 or later, pip install django\n")


def test_the_face_for_django_does_without_rest_framework() -> None:
    code = "import sys; sys.modules['rest_framework'] = None; from ratelimit_mw.django import Throttle; Throttle()"
    subprocess.run([sys.executable, "-c", code], check=True)
