"""Tests that `tox -e audit` checks the packages that users install, and no others."""

from importlib.metadata import version

import pytest

from audit.__main__ import needed


@pytest.mark.parametrize(
    ("extras", "there", "absent"),
    [
        ((), {"msgspec"}, {"redis", "hiredis", "starlette", "pytest", "uvicorn"}),
        (("redis",), {"msgspec", "redis", "hiredis"}, {"starlette", "pytest", "uvicorn"}),
        (("demo",), {"msgspec", "redis", "hiredis", "starlette", "anyio", "uvicorn", "h11"}, {"pytest", "fastapi"}),
    ],
)
def test_audit_covers_the_dependencies_of_extras_transitively(
    extras: tuple[str, ...], there: set[str], absent: set[str]
) -> None:
    found = dict(needed("ratelimit-mw", frozenset(extras)))
    assert there <= {*found}
    assert not absent & {*found}
    assert found["msgspec"] == version("msgspec")
    assert "ratelimit-mw" not in found
