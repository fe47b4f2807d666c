"""Where settings come from besides code: files and the environment."""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, json

from ratelimit_mw.errors import ConfigError, Mistakes
from ratelimit_mw.words import check_words

_PREFIX: Final = "RATELIMIT_MW_"
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


def from_file(path: Path) -> dict[str, Any]:
    """The table in a TOML file, or in one that ends in `.json`. Raises `ConfigError` that names the file."""
    try:
        text = path.read_text("utf-8")
        found = json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, DecodeError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path}: no valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: found {type(found).__name__}, allowed is a table of settings")
    return {word: value for word, value in found.items() if word != _SCHEMA}


def from_environment(environ: Mapping[str, str], table: type, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `RATELIMIT_MW_LIMITS` and its like name.

    Text stands for itself, and is yes or no, or a number, where the default is one; a list is written in JSON, or its
    texts with commas between them; a table is written in JSON. Raises `ConfigError` that names the variable.
    """
    mistakes = Mistakes()
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(_PREFIX) and text.strip():  # an empty one is as good as none
            word = variable.removeprefix(_PREFIX).lower()
            with mistakes.at(variable):
                check_words([word], table)
                found[word] = _read(text.strip(), defaults.get(word))
    mistakes.tell()
    return found


def origin(problem: str, from_variables: Mapping[str, Any]) -> str | None:
    """The variable whose value a problem is about; None when the value came from elsewhere."""
    word = re.split(r"[:.\[]", problem)[0]
    return f"{_PREFIX}{word.upper()}" if word in from_variables else None


def _read(text: str, default: object) -> object:
    if text.startswith(("[", "{")) and not isinstance(default, str):
        try:
            return json.decode(text)
        except DecodeError as error:
            raise ConfigError(f"found no JSON: {error}") from None
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
