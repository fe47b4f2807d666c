"""Gets axe-core, which finds what keeps people with disabilities from using a page, from npm's registry."""

import json
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha512
from pathlib import Path
from typing import Any

import pytest

from browser.devtools import Page

VERSION = "4.14.1"
DIGEST = (
    "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73"
    "4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)
FOLDER = Path(sys.prefix)  # the environment of the tests
WITHIN = 60.0  # seconds
FOUND = """axe.run(document, {resultTypes: ["violations"]}).then((result) => JSON.stringify(result.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => [node.target.join(" "), node.failureSummary])])))"""


def axe_source() -> str:
    """Return the script. Skips the test if npm or its registry is missing."""
    path = FOLDER / f"axe-core-{VERSION}.tgz"
    if not path.exists():
        _fetch(path)
    assert sha512(path.read_bytes()).hexdigest() == DIGEST, f"{path} is another file than the one that was pinned"
    with tarfile.open(path) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def _fetch(path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which fetches axe-core, is not installed")
    command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", str(path.parent)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not fetch axe-core within {WITHIN:g} s")
    if done.returncode or not path.exists():
        pytest.skip(f"npm did not fetch axe-core: {done.stderr[-500:]}")


def serious_findings(page: Page, source: str) -> Any:
    """Return what axe-core finds on the page that is serious or critical."""
    page.value(f"{source}; 0")
    return json.loads(page.value(FOUND))
