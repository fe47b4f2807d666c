"""Runs mutations, several side by side, and reports whether all of them were killed."""

import argparse
import os
import sys
from collections.abc import Sequence

from msgspec import json

from mutations.listing import KILLERS, load
from mutations.runner import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list of mutations. Returns 0 if every mutation was killed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m mutations", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file or reason has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side (%(default)s)")
    given = parser.parse_args(arguments)
    mutations = load()
    chosen = [mutation for mutation in mutations if given.only in f"{mutation.file} {mutation.why}"]
    if not chosen:
        parser.error(f"--only {given.only}: no such mutation")
    killers = json.decode(KILLERS.read_bytes(), type=dict[str, str])
    code = run(chosen, jobs=given.jobs, killers=killers)
    kept = {mutation.name: killers[mutation.name] for mutation in mutations if mutation.name in killers}
    KILLERS.write_bytes(json.format(json.encode(kept), indent=1) + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
