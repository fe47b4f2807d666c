"""Runs each command of the page on installing, into a folder of its own. The wheel is in a folder, not in an index.

This needs the network, like the tutorials; `tox -e py313` runs it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/how-to/install.md").read_text("utf-8")
COMMANDS = re.findall(r"^python3 -m (pip install .*)$", PAGE, re.MULTILINE)
INSTALLS_WITHIN = 600.0  # seconds, on a busy machine
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the files that the package is built from, committed."""
    folder = tmp_path_factory.mktemp("clone") / "ratelimit_mw"
    shutil.copytree(ROOT / "ratelimit_mw", folder / "ratelimit_mw", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, folder)
    author = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "All"]):
        subprocess.run(["git", *words], cwd=folder, check=True)  # noqa: S607
    return folder


def test_page_has_a_command_for_each_source() -> None:
    assert [command.partition('"')[2] for command in COMMANDS] == [
        'ratelimit-mw[redis]"',
        '.[redis]"',
        'ratelimit-mw[redis] @ git+https://HOST/PATH.git"',
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_installs_the_package_and_its_extra(command: str, clone: Path, wheels: Path, tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    own |= {"PIP_TARGET": str(tmp_path), "PIP_FIND_LINKS": str(wheels), "GIT_CONFIG_GLOBAL": os.devnull}
    own["PIP_NO_COMPILE"] = "0"  # pip's way to set --no-compile, which saves time
    words = command.replace("git+https://HOST/PATH.git", f"git+{clone.as_uri()}")
    subprocess.run(
        ["/bin/bash", "-c", f'"{sys.executable}" -m {words}'],
        cwd=clone,
        env=own,
        check=True,
        timeout=INSTALLS_WITHIN,
    )
    code = "import ratelimit_mw, redis, hiredis; print(ratelimit_mw.__file__)"
    seen = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**own, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(seen.stdout.strip()) == tmp_path / "ratelimit_mw" / "__init__.py"
