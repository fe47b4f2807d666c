"""How many examples the property tests draw: few in each run, many in the proof."""

import os

from hypothesis import HealthCheck, settings

PROOF = os.environ.get("TEST_PROFILE") == "proof"
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines fail no test
many = settings(_untimed, max_examples=50_000 if PROOF else 150)  # for parsers of text that clients write
half_as_many = settings(_untimed, max_examples=25_000 if PROOF else 75)
