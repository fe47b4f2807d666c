"""Starts uWSGI in place of this process, with the packages of this interpreter: `python -m run_uwsgi OPTIONS`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    program = str(Path(sys.executable).with_name("uwsgi"))
    os.execv(program, [program, "--virtualenv", sys.prefix, "--die-on-term", "--need-app", *sys.argv[1:]])  # noqa: S606  # no shell is needed
