"""`python -m ratelimit_mw schema`: prints the JSON Schema of settings files, for editors."""

import argparse
import json
from typing import Any

from ratelimit_mw.settings.schema import settings_schema


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    about = "print the JSON Schema of a settings file, for editors"
    parser = commands.add_parser("schema", help=about, description=f"{about}: schema > ratelimit.schema.json")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(settings_schema(), indent=2))
    return 0
