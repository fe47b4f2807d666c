"""Looks for known vulnerabilities in the dependencies that users install: `tox -e audit`.

Queries PyPI's advisory service for the requirements of the package with all extras, and for their requirements, in the
versions installed here. If the service does not know a package or does not respond, the audit fails.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "ratelimit-mw"
IGNORED: dict[str, str] = {}  # advisories that do not concern users of this package, each with the reason
UNKNOWN = "The advisory service did not answer for all of these, so nothing is known about them: this is no 'clean'."


def needed(name: str, extras: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield names and versions of all dependencies of a package with these extras, without the package itself."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras)]
    while waiting:
        one, wanted = waiting.pop()
        if (one, wanted) in seen:
            continue
        seen.add((one, wanted))
        if one != name:
            yield one, version(one)
        for text in requires(one) or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))


def main() -> int:
    """Audit all dependencies with pip-audit. The arguments are passed on to it.

    Returns its exit code: 1 for an advisory, or if the service did not respond.
    """
    extras = frozenset(metadata(PACKAGE).get_all("Provides-Extra") or ())
    pinned = sorted({f"{name}=={number}" for name, number in needed(PACKAGE, extras)})
    sys.stdout.write("\n".join([f"{PACKAGE}[{','.join(sorted(extras))}] needs:", *pinned, ""]))
    for advisory, why in IGNORED.items():
        sys.stdout.write(f"ignored: {advisory}, {why}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "needed.txt"
        listed.write_text("\n".join(pinned), "utf-8")
        ignored = [word for advisory in IGNORED for word in ("--ignore-vuln", advisory)]
        options = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", *ignored]
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *options, *sys.argv[1:], "--requirement", str(listed)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    sys.stderr.write(done.stderr)
    if done.returncode and "Found " not in done.stderr:
        sys.stderr.write(f"{UNKNOWN}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
