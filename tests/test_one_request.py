"""What docs/explanation/one-request.md names is there."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ratelimit_mw

PAGE = Path(__file__).resolve().parent.parent / "docs/explanation/one-request.md"
PACKAGE = Path(ratelimit_mw.__file__).parent
SUFFIXES = (".py", ".lua")
NAMES = sorted(set(re.findall(r"`([^`\n]+)`", PAGE.read_text("utf-8"))))
DOTTED = [name for name in NAMES if re.fullmatch(r"[a-z_]+(\.[A-Za-z_]+)+", name) and Path(name).suffix not in SUFFIXES]
CLASSES = [name for name in NAMES if re.fullmatch(r"([A-Z][a-z]+)+", name)]
FILES = [name for name in NAMES if "/" in name]
WORDS = [name for name in NAMES if re.fullmatch(r"[a-z_]+", name)]
ELSEWHERE = {"look", "messages"}  # a function in Lua, and a setting


def found(name: str) -> Any:
    """What a dotted name stands for, from a module of the package on."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        folder = PACKAGE.joinpath(*parts[:length])
        if folder.with_suffix(".py").is_file() or folder.joinpath("__init__.py").is_file():
            value: Any = import_module(".".join(["ratelimit_mw", *parts[:length]]))
            for part in parts[length:]:
                value = getattr(value, part)
            return value
    raise AssertionError(f"{name} is in no module")


def test_it_names_what_a_request_passes() -> None:
    assert {"asgi.RateLimitMiddleware.__call__", "matching.Rules.match", "policy.plan", "policy.conclude"} <= set(NAMES)


@pytest.mark.parametrize("name", DOTTED)
def test_a_function_is_there(name: str) -> None:
    value = found(name)
    assert callable(value) or not isinstance(value, str)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_there(name: str) -> None:
    assert any(f"\nclass {name}" in path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_there(name: str) -> None:
    assert (PACKAGE / name).is_file()


@pytest.mark.parametrize("name", [word for word in WORDS if word not in ELSEWHERE])
def test_a_module_is_there(name: str) -> None:
    found(name)


def test_what_is_not_there_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("policy.plann")
    with pytest.raises(AssertionError):
        found("polici.plan")
