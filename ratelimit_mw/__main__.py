"""`python -m ratelimit_mw`."""

import sys

from ratelimit_mw.commands import main

sys.exit(main())
