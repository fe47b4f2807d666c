"""The package imports clients and frameworks only for the parts that need them."""

import subprocess
import sys

import pytest

from test_layers import THIRD_PARTY

CLIENTS = (
    "redis",
    "hiredis",
    "starlette",
    "fastapi",
    "flask",
    "flask_login",
    "django",
    "rest_framework",
    "werkzeug",
    "uvicorn",
    "prometheus_client",
    "opentelemetry",
    "grpc",
    "google",
)
OPTIONAL = (*CLIENTS, "pytest", "hypothesis")
MODULES = ("", ".asgi", ".wsgi", ".testing", ".testing.blocking", ".testing.laws")


def test_the_list_has_every_client_and_framework() -> None:
    assert set(THIRD_PARTY) - {"msgspec", "asgiref", "click"} <= set(
        OPTIONAL
    )  # msgspec is required; Django and Flask install the others


@pytest.mark.promise(12)
@pytest.mark.parametrize("module", [f"ratelimit_mw{name}" for name in MODULES])
def test_importing_the_package_imports_no_client_or_framework(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({OPTIONAL!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_middleware_does_not_import_the_testing_package() -> None:
    code = (
        "import sys, ratelimit_mw, ratelimit_mw.asgi, ratelimit_mw.wsgi; print('ratelimit_mw.testing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_redis_url_without_the_client_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from ratelimit_mw.asgi import RateLimitMiddleware\n"
        "RateLimitMiddleware(None, limits='1/minute', store='redis://localhost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    text = "store: this part of ratelimit_mw needs redis: pip install 'ratelimit-mw[redis]' [RL-039]"
    assert done.stderr.splitlines()[-1].endswith(f"ConfigError: {text}")


def test_redis_store_without_the_client_names_the_package_to_install() -> None:
    code = "import sys; sys.modules['redis'] = None; from ratelimit_mw.stores.redis import RedisStore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: this part of ratelimit_mw needs redis: pip install 'ratelimit-mw[redis]'"


@pytest.mark.parametrize("module", ["flask", "starlette", "fastapi", "django"])
def test_integration_without_its_framework_names_the_package_to_install(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import ratelimit_mw.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"ImportError: this part of ratelimit_mw needs {module}: pip install {module}"


@pytest.mark.parametrize(("module", "project"), [("grpc", "grpcio"), ("google", "protobuf")])
def test_missing_module_of_grpc_names_the_project_to_install(module: str, project: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import ratelimit_mw.service.grpc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == f"ImportError: this part of ratelimit_mw needs {module}: pip install {project}"


def test_missing_fastapi_is_reported_before_missing_starlette() -> None:
    code = "import sys; sys.modules['fastapi'] = sys.modules['starlette'] = None; import ratelimit_mw.fastapi"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ImportError: this part of ratelimit_mw needs fastapi: pip install fastapi"


def test_missing_dependency_of_a_framework_raises_the_original_error() -> None:
    code = "import sys; sys.modules['blinker'] = None; import ratelimit_mw.flask"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of blinker")


def test_flask_integration_does_not_import_flask_login() -> None:
    code = "import sys, ratelimit_mw.flask; print('flask_login' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_starlette_integration_imports_no_other_framework() -> None:
    code = "import sys, ratelimit_mw.starlette; print(sorted(set(sys.modules) & {'fastapi', 'flask', 'django'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_django_integration_works_without_rest_framework() -> None:
    code = "import sys; sys.modules['rest_framework'] = None; from ratelimit_mw.django import Throttle; Throttle()"
    subprocess.run([sys.executable, "-c", code], check=True)
