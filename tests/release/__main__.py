"""Run by `tox -e release`: builds wheel and sdist, checks both, and tries the wheel in empty environments."""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"
# for each extra: a program that needs it
USES: Final = {
    "": "from ratelimit_mw import Limiter; assert Limiter().hit('1/minute', 'a')",
    "redis": "from ratelimit_mw.stores.redis import RedisStore; RedisStore('redis://localhost').close()",
    "starlette": "import ratelimit_mw.starlette",
    "fastapi": "import ratelimit_mw.fastapi",
    "flask": "import flask; from ratelimit_mw.flask import RateLimiter; RateLimiter(flask.Flask('a'), limits='1/day')",
    "django": "from django.conf import settings; settings.configure(); import ratelimit_mw.django",
    "prometheus": "import ratelimit_mw.metrics",
    "serve": "import uvicorn; from ratelimit_mw.service import service; service({'limits': '1/minute'})",
    "grpc": "import grpc; from ratelimit_mw.service import service; service({'limits': '1/minute'})",
    "all": "import ratelimit_mw.fastapi, ratelimit_mw.flask",
    "demo": "import subprocess as s, sys; s.run([sys.executable, '-m', 'ratelimit_mw', 'demo', '--help'], check=True)",
}


def run(*command: str | Path) -> None:
    """Run a command. Raises an error if it fails."""
    sys.stdout.write(f"$ {' '.join(map(str, command))}\n")
    sys.stdout.flush()
    subprocess.run(command, cwd=ROOT, check=True)


def try_extra(wheel: Path, extra: str) -> None:
    """Install the wheel with one extra in an empty environment, and use it there."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else wheel)
        run(python, "-m", "pip", "check")
        run(python, "-I", "-c", USES.get(extra, f"import ratelimit_mw.{extra}"))
        run(python, "-I", "-m", "ratelimit_mw", "--version")


def main() -> None:
    """Build and check the distributions, and try the wheel with each extra."""
    for old in DIST.glob("ratelimit_mw-*"):
        old.unlink()
    run(sys.executable, "-m", "validate_pyproject", "pyproject.toml")
    run(sys.executable, "-m", "build", "--outdir", DIST)
    built = sorted(DIST.glob("ratelimit_mw-*"))
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    wheel = next(path for path in built if path.suffix == ".whl")
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in ("", *extras):
        try_extra(wheel, extra)


if __name__ == "__main__":
    main()
