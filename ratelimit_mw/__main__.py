"""Entry point of `python -m ratelimit_mw`."""

import sys

from ratelimit_mw.cli import main

sys.exit(main())
