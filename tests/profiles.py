"""How many examples the property tests draw: few where another interpreter draws more, and many in the proof."""

import os

from hypothesis import HealthCheck, Phase, settings

# derandomize is explicit, because Hypothesis would turn it on in a CI.
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=False)
settings.register_profile("few", settings.get_profile("quick"), max_examples=10)
settings.register_profile("proof", settings.get_profile("quick"), max_examples=2000)
# a planted defect must only be found: looking for the simplest example would take most of the time
settings.register_profile(
    "mutation", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False
)
settings.load_profile(os.environ.get("TEST_PROFILE", "quick"))

PROOF = os.environ.get("TEST_PROFILE") == "proof"
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines fail no test
many = settings(_untimed, max_examples=50_000 if PROOF else 150)  # for parsers of text that clients write
half_as_many = settings(_untimed, max_examples=25_000 if PROOF else 75)
