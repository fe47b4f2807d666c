"""Where settings come from besides code: files and the environment."""

import os
import re
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, json

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.log import Finding
from ratelimit_mw.core.peer_options import translate_option
from ratelimit_mw.core.validation import reject_unknown_keys
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.toml_lines import find_line

_PREFIX: Final = "RATELIMIT_MW_"
_PREFIX_OF_PEERS: Final = "RATELIMIT_"
_PEERS: Final = {"flask_limiter", "django_ratelimit"}  # which read such names themselves
_SCHEMA: Final = "$schema"  # where editors look for the schema of a JSON file
_YES_NO: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def read_file(path: Path) -> dict[str, Any]:
    """The table in a TOML file, or in one that ends in `.json`. Raises `ConfigError` that names the file."""
    try:
        text = path.read_text("utf-8")
        table = json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, DecodeError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path}: no valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: got {type(table).__name__}, expected a table of settings")
    return {option: value for option, value in table.items() if option != _SCHEMA}


def from_environment(environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `RATELIMIT_MW_LIMITS` and its like name. Raises `ConfigError` that names each wrong variable.

    Text stands for itself, and is yes or no, or a number, where the default is one; a list is written in JSON, or its
    texts with commas between them; a table is written in JSON.
    """
    values, wrong = read_environment(environ, table, defaults)
    if wrong:
        raise ConfigError(*wrong.values())
    return values


def read_environment(
    environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The same, and by setting what is wrong with the variables that cannot be read."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for variable, text in environ.items():
        if variable.startswith(_PREFIX):
            option = variable.removeprefix(_PREFIX).lower()
            try:
                with error_location(variable):
                    reject_unknown_keys([option], table)
                    values[option] = _read(text.strip(), defaults.get(option))
            except ConfigError as error:
                wrong[option] = error.problems[0]
    return values, wrong


def problems_except(problems: Iterable[str], names: Container[str]) -> list[str]:
    """The problems that are not about these settings."""
    return [problem for problem in problems if _setting(problem) not in names]


def unread_settings(names: Iterable[str], setting: str) -> Iterator[Finding]:
    """Names in a framework's configuration that look like settings and are not read: `RATELIMIT_MW_LIMITS`.

    `setting`: where the settings go instead. A name that the environment has too was copied from there, and is read.
    """
    for name in sorted(names):
        option = name.removeprefix(_PREFIX).removeprefix(_PREFIX_OF_PEERS).lower()
        if name.startswith(_PREFIX):
            if name in os.environ:
                continue
        elif not name.startswith(_PREFIX_OF_PEERS) or _PEERS & sys.modules.keys():
            continue
        if option in Options.__annotations__:
            yield Finding(f"{name} is not read here; write `{option}` into {setting}")
        elif equivalent := translate_option(option) or translate_option(
            f"{option}_limits"
        ):  # RATELIMIT_DEFAULT: default_limits
            yield Finding(f"{name} is not read here; write `{equivalent[0]}` into {setting}: {equivalent[1]}")


def variable_of(problem: str, from_variables: Mapping[str, Any]) -> str | None:
    """The variable whose value a problem is about; None when the value came from elsewhere."""
    option = _setting(problem)
    return f"{_PREFIX}{option.upper()}" if option in from_variables else None


def _setting(problem: str) -> str:
    return re.split(r"[:.\[]", problem)[0]


def with_location(problem: str, path: Path, from_variables: Mapping[str, Any]) -> str:
    """A problem behind the variable that it is about; else behind the file, with the line where a scan finds it."""
    if variable := variable_of(problem, from_variables):
        return f"{variable}: {problem}"
    line = None
    if path.suffix != ".json":
        with suppress(OSError, UnicodeDecodeError):
            line = find_line(path.read_text("utf-8"), problem)
    return f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}"


def _read(text: str, default: object) -> object:
    if not text:  # hardly meant: a variable that a compose file refers to is not set, for example
        fix = "; [] is an empty list" if isinstance(default, tuple) else ""
        raise ConfigError(f"got no text; give the variable a value, or remove it{fix}")
    if text.startswith(("[", "{")) and not isinstance(default, str):
        try:
            return json.decode(text)
        except DecodeError as error:
            raise ConfigError(f"got no JSON: {error}") from None
    if isinstance(default, bool):
        return _YES_NO.get(text.lower(), text)
    if isinstance(default, (int, float)) or (isinstance(default, tuple) and text.isdecimal()):
        return _number(text)
    if isinstance(default, tuple):
        return [one.strip() for one in text.split(",") if one.strip()]
    return text


def _number(text: str) -> object:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
