"""Reads settings from files and from the environment."""

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
_PEERS: Final = {"flask_limiter", "django_ratelimit"}  # packages that read such names themselves
_SCHEMA: Final = "$schema"  # editors find the schema of a JSON file under this key
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
    """Read a settings file: JSON if its name ends in `.json`, else TOML. Raises `ConfigError` that names the file."""
    try:
        text = path.read_text("utf-8")
        table = json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, DecodeError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path}: invalid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: got {type(table).__name__}, expected a table of settings")
    return {option: value for option, value in table.items() if option != _SCHEMA}


def from_environment(environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in environment variables such as `RATELIMIT_MW_LIMITS`.

    If an option's default is a bool or a number, so is its variable. A list is JSON, or texts separated by commas; a
    table is JSON. All other text is used as it is. Raises `ConfigError` that names each invalid variable.
    """
    values, problems = read_environment(environ, table, defaults)
    if problems:
        raise ConfigError(*problems.values())
    return values


def read_environment(
    environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the same as `from_environment`, and the problems of unreadable variables by option."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for variable, text in environ.items():
        if variable.startswith(_PREFIX):
            option = variable.removeprefix(_PREFIX).lower()
            try:
                with error_location(variable):
                    reject_unknown_keys([option], table)
                    values[option] = _read(text.strip(), defaults.get(option))
            except ConfigError as error:
                problems[option] = error.problems[0]
    return values, problems


def problems_except(problems: Iterable[str], names: Container[str]) -> list[str]:
    """Return the problems that are not about these options."""
    return [problem for problem in problems if _setting(problem) not in names]


def unread_settings(names: Iterable[str], setting: str) -> Iterator[Finding]:
    """Yield findings for names in a framework's configuration that look like settings but are not read.

    `setting`: the place that is read instead. A name such as `RATELIMIT_MW_LIMITS` that is also in the environment is
    skipped: the app copied it from there, and the environment is read.
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
        ):  # RATELIMIT_DEFAULT means default_limits
            yield Finding(f"{name} is not read here; write `{equivalent[0]}` into {setting}: {equivalent[1]}")


def variable_of(problem: str, from_variables: Mapping[str, Any]) -> str | None:
    """Return the environment variable that a problem is about; None if the value came from elsewhere."""
    option = _setting(problem)
    return f"{_PREFIX}{option.upper()}" if option in from_variables else None


def _setting(problem: str) -> str:
    return re.split(r"[:.\[]", problem)[0]


def with_location(problem: str, path: Path, from_variables: Mapping[str, Any]) -> str:
    """Prefix a problem with its environment variable; else with the file, and the line if a scan finds it."""
    if variable := variable_of(problem, from_variables):
        return f"{variable}: {problem}"
    line = None
    if path.suffix != ".json":
        with suppress(OSError, UnicodeDecodeError):
            line = find_line(path.read_text("utf-8"), problem)
    return f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}"


def _read(text: str, default: object) -> object:
    if not text:  # probably a mistake, such as a compose file that refers to an unset variable
        fix = "; [] is an empty list" if isinstance(default, tuple) else ""
        raise ConfigError(f"got an empty value; set the variable, or remove it{fix}")
    if text.startswith(("[", "{")) and not isinstance(default, str):
        try:
            return json.decode(text)
        except DecodeError as error:
            raise ConfigError(f"got invalid JSON: {error}") from None
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
