"""The names, labels and units of the metrics. Labels come from the settings, never from a request."""

from typing import Final, Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
Series = tuple[str, tuple[str, ...]]
"""Identifies a number that is counted: the name of its sample, and the values of its labels."""


class Family(Struct, frozen=True):
    """A metric, as it is exposed.

    `unit`: a cell contains whole numbers, which are divided by `unit` to expose them. `once`: the number is 1, however
    many processes have set it. `mean`: the sum of all processes is divided by their number.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: int = 1
    once: bool = False
    mean: bool = False


MICROSECONDS: Final = 1_000_000  # in a second
BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
BOUND_LABELS: Final = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")

REQUESTS: Final = Family(
    "ratelimit_requests_total",
    "counter",
    "Requests and websocket messages that met a rule, by outcome (admitted, refused, shed) and source of the decision.",
    ("rule", "outcome", "source"),
)
REFUSALS: Final = Family(
    "ratelimit_refusals_total",
    "counter",
    "Refusals by each limit; with shadow=true, what a limit in shadow mode would have refused.",
    ("rule", "limit", "shadow"),
)
DELAY_SECONDS: Final = Family(
    "ratelimit_delay_seconds_total",
    "counter",
    "Seconds for which admitted requests were delayed.",
    ("rule",),
    MICROSECONDS,
)
DELAYED: Final = Family(
    "ratelimit_delayed_requests_total", "counter", "Admitted requests that were delayed.", ("rule",)
)
STORE_SECONDS: Final = Family(
    "ratelimit_store_seconds",
    "histogram",
    "Seconds until a server replied to a call, which may decide several requests.",
    ("call",),
    MICROSECONDS,
)
STORE_ERRORS: Final = Family(
    "ratelimit_store_errors_total", "counter", "Calls of a server that failed, by kind of error.", ("call", "kind")
)
WAITING: Final = Family(
    "ratelimit_waiting_requests", "gauge", "Requests that are delayed, or wait in a queue for a slot, now.", ("rule",)
)
AT_WORK: Final = Family("ratelimit_at_work", "gauge", "With a latency goal: requests that are at work now.")
AT_WORK_LIMIT: Final = Family(
    "ratelimit_at_work_limit", "gauge", "With a latency goal: how many requests may be at work now."
)
LATENCY_GOAL: Final = Family(
    "ratelimit_latency_goal_seconds",
    "gauge",
    "The latency goal; the mean of all processes.",
    unit=MICROSECONDS,
    mean=True,
)
LATENCY_REACHED: Final = Family(
    "ratelimit_latency_reached_seconds",
    "gauge",
    "The 90th percentile of the latest latencies; the mean of all processes.",
    unit=MICROSECONDS,
    mean=True,
)
GUARDS: Final = Family("ratelimit_latency_goals", "gauge", "Processes with a latency goal.")
STORE_KEYS: Final = Family("ratelimit_store_keys", "gauge", "States that are kept in memory.")
STORE_OPEN: Final = Family(
    "ratelimit_store_open", "gauge", "Stores that are not queried at the moment, because they failed."
)
POLICY_INFO: Final = Family(
    "ratelimit_policy_info",
    "gauge",
    "1 for the digest of each settings in force; reload: off, ok, or failed if a change was not taken over.",
    ("digest", "reload"),
    once=True,
)
OVERRIDES: Final = Family(
    "ratelimit_overrides", "gauge", "Overrides and switches in force, by action; each process counts all.", ("action",)
)

FAMILIES: Final = (
    REQUESTS,
    REFUSALS,
    DELAY_SECONDS,
    DELAYED,
    STORE_SECONDS,
    STORE_ERRORS,
    WAITING,
    AT_WORK,
    AT_WORK_LIMIT,
    LATENCY_GOAL,
    LATENCY_REACHED,
    GUARDS,
    STORE_KEYS,
    STORE_OPEN,
    POLICY_INFO,
    OVERRIDES,
)
OTHER: Final = "other"  # the label of the rules and limits beyond the maximum of series


def sample_name(family: Family, part: str = "") -> str:
    """Return the name of a family's sample. `part`: `bucket` or `sum`, of a histogram."""
    return f"{family.name}_{part}" if part else family.name


GAUGES: Final = frozenset(family.name for family in FAMILIES if family.kind == "gauge")


def with_other_labels(series: Series) -> Series:
    """Return the series to count in place of this one if there are too many; the same series if it has no rule."""
    name, labels = series
    if name == REFUSALS.name:
        return name, (OTHER, OTHER, labels[2])
    return (name, (OTHER, *labels[1:])) if name in _BY_RULE else series


_BY_RULE: Final = frozenset(family.name for family in FAMILIES if family.labels[:1] == ("rule",))
