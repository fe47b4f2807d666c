"""Copies of the package, as it is here and as it was at a commit."""

import io
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Final, NamedTuple
from zipfile import ZipFile

import ratelimit_mw

ROOT: Final = Path(__file__).resolve().parents[1]  # the folder of this program
_PACKAGE: Final = "ratelimit_mw"


class Tree(NamedTuple):
    """A folder that contains the package. `name`: its name in the table."""

    folder: Path
    name: str
    title: str


class NoTree(Exception):
    """The commit is missing here. The message says why."""


@contextmanager
def here() -> Iterator[Tree]:
    """Copy the package that this program imports, so that edits during the run do not reach its workers."""
    package = Path(ratelimit_mw.__file__).parent
    with _folder() as folder:
        copytree(package, folder / _PACKAGE, ignore=ignore_patterns("__pycache__"))
        yield Tree(folder, "this", str(package))


@contextmanager
def at(commit: str) -> Iterator[Tree]:
    """Extract the package of a commit into a temporary folder. Raises `NoTree`."""
    found = _git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}", otherwise="no such commit"
    )
    full = found.decode().strip()
    title = _git("show", "--no-patch", "--format=%h %s", full).decode().strip()
    archive = _git("archive", "--format=zip", full, _PACKAGE)
    with _folder() as folder:
        with ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)
        yield Tree(folder, title.partition(" ")[0], title)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ratelimit-mw-bench-") as folder:
        yield Path(folder).resolve()


def _git(*arguments: str, otherwise: str = "") -> bytes:
    """Return the output of git. `otherwise`: the error if git fails without a message."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)  # noqa: S607
    except FileNotFoundError:
        raise NoTree("git: not on PATH") from None
    if done.returncode:
        raise NoTree(done.stderr.decode(errors="replace").strip() or otherwise)
    return done.stdout
