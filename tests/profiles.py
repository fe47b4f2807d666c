"""How many examples the property tests draw: few in each run, many in the proof."""

import os

from hypothesis import settings

PROOF = os.environ.get("TEST_PROFILE") == "proof"
many = settings(max_examples=50_000 if PROOF else 150)  # for what reads the text that clients write
half_as_many = settings(max_examples=25_000 if PROOF else 75)
