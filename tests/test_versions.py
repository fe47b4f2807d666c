"""The environment of `tox -e py311` has the oldest versions, as it requests; the others have the newest."""

import os
from importlib.metadata import version

import pytest

TOLD = os.environ.get("TEST_OLDEST", "")  # such as "starlette 0.46, flask 3.0"; empty where the newest are installed
PACKAGES = ("starlette", "fastapi", "flask", "django", "redis")


@pytest.mark.parametrize("package", PACKAGES)
def test_installed_version_matches_the_requested_version(package: str) -> None:
    meant = dict(pair.split() for pair in TOLD.split(",")).get(package, "") if TOLD else ""
    assert f"{version(package)}.".startswith(f"{meant}." if meant else "")


def test_requested_versions_cover_all_packages_or_none() -> None:
    assert [pair.split()[0] for pair in TOLD.split(",") if pair] in ([], list(PACKAGES))


def test_only_the_oldest_fastapi_predates_its_tree_of_routes() -> None:
    is_older = tuple(int(part) for part in version("fastapi").split(".")[:2]) < (0, 137)
    assert is_older is bool(TOLD)
