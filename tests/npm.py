"""Gets packages from npm's registry, each in one pinned version. Skips a test without npm or the registry."""

import shutil
import subprocess
import sys
import tarfile
from hashlib import sha512
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix)  # the environment of the tests
WITHIN = 60.0  # seconds


def file_of(package: str, version: str, digest: str, name: str) -> str:
    """Return the text of a file in a package. `digest`: SHA-512 of the package, in hexadecimal."""
    path = FOLDER / f"{package}-{version}.tgz"
    if not path.exists():
        _fetch(f"{package}@{version}", path)
    assert sha512(path.read_bytes()).hexdigest() == digest, f"{path} is another file than the one that was pinned"
    with tarfile.open(path) as archive:
        script = archive.extractfile(f"package/{name}")
        assert script is not None
        return script.read().decode()


def _fetch(package: str, path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm, which fetches {package}, is not installed")
    command = [npm, "pack", package, "--pack-destination", str(path.parent)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not fetch {package} within {WITHIN:g} s")
    if done.returncode or not path.exists():
        pytest.skip(f"npm did not fetch {package}: {done.stderr[-500:]}")
