"""Reads settings from files and from the environment."""

import os
import re
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, json

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.log import Finding
from ratelimit_mw.core.validation import reject_unknown_keys, translate_option
from ratelimit_mw.settings.options import Options

_PREFIX: Final = "RATELIMIT_MW_"
_OTHER_PREFIX: Final = "RATELIMIT_"
DASHBOARD_SECRET: Final = "RATELIMIT_MW_DASHBOARD_SECRET"  # noqa: S105  # the name of a variable, which is no setting
_SETTING: Final = "RATELIMIT_MW"  # the name of the mapping in the configuration of Flask and Django
_NAME_AND_OPTION: Final = re.compile(rf"(\w{{10,14}}?)(?:_({'|'.join(Options.__annotations__)}))?", re.IGNORECASE)
_SIMILARITY: Final = 0.9  # of a misspelled name, such as RATELIMIT_MV; 1 is equality; 10 to 14 characters can reach it
_OTHER_LIMITERS: Final = {"flask_limiter", "django_ratelimit", "slowapi"}  # packages that read such names themselves
_SCHEMA: Final = "$schema"  # the key under which editors find the schema of a JSON file
_YES_NO: Final = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

# `find_line` reads the message of a problem with the first two patterns, and a TOML file with the others
_RULE: Final = re.compile(r"rules\[(\d+)\](?: \([^)]*\))?(?:\.|: )?")
_WORD: Final = re.compile(r"unknown setting `([^`]+)`|([A-Za-z_]+)")
_HEADER: Final = re.compile(r"\[(\[?)\s*([\w.]+)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""["']?([\w-]+)["']?\s*[=.]""")
_STRINGS: Final = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|#.*""")
_LONG: Final = ('"""', "'''")
_RULES: Final = "rules"
_Key = tuple[int | None, str]  # the index of the rule, None for global settings; the option, empty for the rule itself


def read_file(path: Path) -> dict[str, Any]:
    """Read a settings file: JSON if its name ends in `.json`, else TOML. Raises `ConfigError` that names the file."""
    return parse_file(path, read_text(path))


def read_text(path: Path, shown: Path | None = None) -> str:
    """Return the text of a file. Raises `ConfigError` that names it. `shown`: the path in errors, if it is another."""
    shown = shown or path
    try:
        return path.read_text("utf-8-sig")  # editors of Windows may write a byte order mark
    except OSError as error:
        error.filename = str(shown)
        folder = "" if shown.is_absolute() else f", in the folder {Path.cwd()}"
        raise ConfigError(f"{shown}: {error}{folder}", code="RL-006") from None
    except UnicodeDecodeError as error:
        raise _invalid(shown, error) from None


def parse_file(path: Path, text: str) -> dict[str, Any]:
    """Return the table of a settings file with this text. Raises `ConfigError` that names the file."""
    try:
        table = json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, DecodeError) as error:  # a TOMLDecodeError is a ValueError
        raise _invalid(path, error) from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: got {type(table).__name__}, expected a table of settings", code="RL-006")
    if header := _table_around(table):
        raise ConfigError(
            f"{path}: got the settings in the table [{header}], expected them at the top; remove this table header",
            code="RL-006",
        )
    return {option: value for option, value in table.items() if option != _SCHEMA}


def _invalid(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: invalid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}", code="RL-006")


def _table_around(table: Mapping[str, Any], above: str = "") -> str | None:
    """Return the name of a table that contains settings instead of the file itself, such as `tool.ratelimit_mw`."""
    for name, value in table.items():
        if isinstance(value, dict) and name not in Options.__annotations__:
            if not value.keys().isdisjoint(Options.__annotations__):
                return above + name
            if (found := _table_around(value, f"{above}{name}.")) is not None:
                return found
    return None


def read_environment(
    environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings in variables such as `RATELIMIT_MW_LIMITS`, and the problems of those that cannot be read.

    A misspelled prefix, as in `RATELIMITMW_LIMITS`, is a problem, too. Both are by option. If the default of an option
    is a bool or a number, its variable is read as one, too. A list is JSON, or texts separated by commas. A table is
    JSON. Any other text is used unchanged.
    """
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for variable, text in environ.items():
        if variable.startswith(_PREFIX) and variable != DASHBOARD_SECRET:
            option = variable.removeprefix(_PREFIX).lower()
            try:
                with error_location(variable):
                    reject_unknown_keys([option], table)
                    values[option] = _read(text.strip(), defaults.get(option))
            except ConfigError as error:
                problems[option] = error.problems[0]
        elif (meant := _option_of_misspelled(variable)) and meant in table.__annotations__:
            problem = f"{variable}: unknown variable: did you mean `{_PREFIX}{meant.upper()}`?"
            problems[meant] = ConfigError(problem, code="RL-001").problems[0]
    return values, problems


def unread_settings(names: Iterable[str], setting: str) -> Iterator[Finding]:
    """Yield findings for names in a framework's configuration that look like settings but are not read.

    `setting`: the place that is read instead. Skips a name such as `RATELIMIT_MW_LIMITS` that is also in the
    environment, because the app copied it from there, and the environment is read.
    """
    for name in sorted(names):
        is_name = name == _SETTING or name.startswith(_PREFIX)
        if not is_name and (misspelled := _option_of_misspelled(name)) is not None:
            part = f"`{misspelled}`" if misspelled else "its content"
            yield Finding(f"{name} is not read here; write {part} into {setting}", code="RL-111")
            continue
        option = name.removeprefix(_PREFIX).removeprefix(_OTHER_PREFIX).lower()
        if name.startswith(_PREFIX):
            if name in os.environ:
                continue
        elif not name.startswith(_OTHER_PREFIX) or _OTHER_LIMITERS & sys.modules.keys():
            continue
        if option in Options.__annotations__:
            yield Finding(f"{name} is not read here; write `{option}` into {setting}", code="RL-111")
        elif equivalent := translate_option(option) or translate_option(
            f"{option}_limits"
        ):  # RATELIMIT_DEFAULT means default_limits
            yield Finding(
                f"{name} is not read here; write `{equivalent[0]}` into {setting}: {equivalent[1]}", code="RL-111"
            )


def unread_variables() -> Iterator[Finding]:
    """Yield findings for variables of the environment such as `RATELIMIT_STORE`, which lacks `MW_`.

    Never an error, because such a variable may belong to another package.
    """
    for name in () if _OTHER_LIMITERS & sys.modules.keys() else sorted(os.environ):
        option = name.removeprefix(_OTHER_PREFIX)
        meant = f"{_PREFIX}{option}"
        if name != option and option.lower() in Options.__annotations__ and meant not in os.environ:
            text = f"{name} is not read; if it is for ratelimit_mw, write {meant}"
            yield Finding(text, weakens_limits=False, code="RL-111")


def _option_of_misspelled(name: str) -> str | None:
    """Return the option that follows a misspelled `RATELIMIT_MW`, empty if none does. None for any other name."""
    found = _NAME_AND_OPTION.fullmatch(name)
    if found is None or not get_close_matches(found[1].upper(), [_SETTING], cutoff=_SIMILARITY):
        return None
    return (found[2] or "").lower()


def option_of(problem: str) -> str:
    """Return the option that a problem is about."""
    return re.split(r"[:.\[]", problem)[0]


def with_location(problem: str, from_variables: Container[str], path: Path | None) -> str:
    """Prefix a problem with its environment variable, or else with the file, if any, and with the line if it is found.

    `from_variables`: the options whose values come from the environment.
    """
    if (option := option_of(problem)) in from_variables:
        return f"{_PREFIX}{option.upper()}: {problem}"
    if path is None:
        return problem
    line = None
    if path.suffix != ".json":
        with suppress(OSError, UnicodeDecodeError):
            line = find_line(path.read_text("utf-8"), problem)
    return f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}"


def _read(text: str, default: object) -> object:
    if not text:  # probably a mistake, such as a compose file that refers to an unset variable
        fix = "; [] is an empty list" if isinstance(default, tuple) else ""
        raise ConfigError(f"got an empty value; set the variable, or remove it{fix}", code="RL-007")
    if text.startswith(("[", "{")) and not isinstance(default, str):
        try:
            return json.decode(text)
        except DecodeError as error:
            raise ConfigError(f"got invalid JSON: {error}", code="RL-007") from None
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


def find_line(text: str, problem: str) -> int | None:
    """Return the number of the line in TOML `text` that a problem is about; None if the scan does not find it.

    `tomllib` keeps no line numbers, so the text is scanned for headers and keys.
    """
    numbers = dict(reversed(list(_keys_of_lines(text))))  # reversed, so that the first of equal keys is used
    rule = _RULE.match(problem)
    word = _WORD.match(problem, rule.end() if rule else 0)
    name = (word[1] or word[2]) if word else ""
    if rule is None:
        return numbers.get((None, name))
    index = int(rule[1])
    return numbers.get((index, name)) or numbers.get((index, "")) or numbers.get((None, _RULES))


def _keys_of_lines(text: str) -> Iterator[tuple[_Key, int]]:
    """Yield the key at the start of each line, and the line's number. Skips lines inside arrays and long strings."""
    rule: int | None = None
    last_rule, depth, quotes = -1, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        stripped = line.strip()
        header = None if depth else _HEADER.fullmatch(stripped)
        if header is not None:
            if header[1] and header[2] == _RULES:
                last_rule += 1
                rule = last_rule
                yield (rule, ""), number
            else:
                table, _, field = header[2].partition(".")
                rule = last_rule if table == _RULES else None
                yield (rule, (field or table).partition(".")[0]), number
            continue
        if not depth and (key := _KEY.match(stripped)):
            yield (rule, key[1]), number
        quotes = next((mark for mark in _LONG if stripped.count(mark) % 2), "")
        unquoted = _STRINGS.sub("", stripped)
        depth += sum(map(unquoted.count, "[{")) - sum(map(unquoted.count, "]}"))
