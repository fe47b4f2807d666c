"""The table of HTTP scenarios. `scenario.py` defines a row."""

from web.scenario import Scenario
from web.scenarios_callables import CHOICE
from web.scenarios_clients import WHO
from web.scenarios_faults import FAULTS
from web.scenarios_keys import KEYS
from web.scenarios_penalty import PENALTY
from web.scenarios_preflights import PREFLIGHTS
from web.scenarios_responses import ANSWERS
from web.scenarios_rules import RULES
from web.scenarios_usage import USAGE

SCENARIOS: tuple[Scenario, ...] = (*ANSWERS, *RULES, *KEYS, *WHO, *PREFLIGHTS, *CHOICE, *FAULTS, *PENALTY, *USAGE)
