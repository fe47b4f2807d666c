"""Runs a contender in a separate process, with the package of any tree: `python -P -m benchmarks.worker MODULE:NAME`.

It prints the path of its package, or what is missing. Then it reads a number of calls from each line, makes the calls,
and prints nanoseconds, admitted and refused. Every line that it prints is JSON.
"""

import gc
import json
import sys
from importlib import import_module
from typing import Any

from benchmarks.lab import Lab
from benchmarks.runner import Contender, Setup


def main(contender: str) -> None:
    """Run turns until the input ends."""
    with Lab(1, None, sys.stderr) as lab:
        try:
            made = _made(contender, lab)
        except Exception as error:  # noqa: BLE001  # an old tree may lack anything
            _say({"missing": f"{type(error).__name__}: {error}"})
            return
        _say({"package": import_module("ratelimit_mw").__file__})
        for line in sys.stdin:
            gc.collect()  # a turn does not collect the garbage of the last one
            _say(made(int(line)))


def _made(contender: str, lab: Lab) -> Contender:
    module, _, name = contender.partition(":")
    setup: Setup = getattr(import_module(module), name)
    return setup(lab)


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
