"""The table of HTTP scenarios. What a row means: `scenario.py`."""

from web.scenario import Scenario
from web.scenarios_answers import ANSWERS
from web.scenarios_choice import CHOICE
from web.scenarios_faults import FAULTS
from web.scenarios_keys import KEYS
from web.scenarios_penalty import PENALTY
from web.scenarios_preflights import PREFLIGHTS
from web.scenarios_rules import RULES
from web.scenarios_who import WHO

SCENARIOS: tuple[Scenario, ...] = (*ANSWERS, *RULES, *KEYS, *WHO, *PREFLIGHTS, *CHOICE, *FAULTS, *PENALTY)
