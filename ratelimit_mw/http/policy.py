"""How headers and bodies show a limit."""

from math import ceil
from typing import Any, Final

from ratelimit_mw.core.limit import Limit

MAX_FIELD_INT: Final = 999_999_999_999_999  # the largest integer of a structured field (RFC 9651, 3.3.1)
POLICY_NAME: Final = b"ratelimit-policy"
_BURST: Final = "ratelimit-mw-burst"  # not in the draft, so the parameter has a vendor prefix
_SLOT_UNIT: Final = "concurrent-requests"  # the quota unit of slots; the unit of all other limits is requests


class Policy:
    """How headers and bodies show one limit: its name and numbers. Made once per limit; compared by identity."""

    __slots__ = (
        "burst",
        "field",
        "label",
        "limit",
        "max_wait_seconds",
        "may_be_hidden",
        "name",
        "on_refused",
        "only_in_refusals",
        "quota",
        "rate_limit_format",
        "settle_policy",
        "settles",
        "text",
        "text_of_drafts",
    )

    def __init__(
        self,
        name: str,
        limit: Limit,
        *,
        only_in_refusals: bool = False,
        shadow: bool = False,
        settles: bool = True,
        settle_policy: Any = None,
        label: str = "",
        on_refused: Any = None,
    ) -> None:
        self.name = name
        self.on_refused = on_refused  # of its rule, as in the settings
        self.label = label or name  # the name in metrics; a callable must not choose the labels of metrics
        self.limit = limit
        self.quota = min(limit.quota, MAX_FIELD_INT)  # units, at most what a header field can show
        # units that can be admitted at one instant
        self.burst = min(limit.quota and (getattr(limit, "burst", None) or limit.quota), MAX_FIELD_INT)
        self.max_wait_seconds = ceil(limit.max_wait)  # the most that `t` of the RateLimit field shows
        # Whether headers show it only when it refuses: the numbers of a limit for all clients reveal the traffic of
        # others, and those of a penalty count refusals.
        self.only_in_refusals = only_in_refusals
        self.may_be_hidden = only_in_refusals or shadow  # whether the headers of an admitted request leave it out
        self.settles = settles  # whether the charge is settled when the true cost is known
        self.settle_policy = settle_policy  # the SettlePolicy of its rule, if any
        # in the field RateLimit-Policy, such as `"default";q=100;w=60`; None if the window depends on the time
        self.text = None if limit.uses_wall_time else self._text(limit.window)
        self.field = None if self.text is None else (POLICY_NAME, self.text)
        self.text_of_drafts = None if limit.uses_wall_time else self._text_of_drafts(limit.window)
        # In the field RateLimit: a format of units left and seconds. A name never contains %. A quota of 0 has no `t`,
        # because waiting does not help: `%.0a` shows nothing.
        self.rate_limit_format = f'"{name}";r=%d'.encode() + (b";t=%d" if self.quota else b"%.0a")

    def text_at(self, now: int) -> bytes:
        """Return `text` for the window with this instant, in microseconds."""
        return self._text(self.limit.window_at(now))

    def text_of_drafts_at(self, now: int) -> str:
        """Return `text_of_drafts`, the policy in the drafts 6 and 7, for the window with this instant."""
        return self.text_of_drafts or self._text_of_drafts(self.limit.window_at(now))

    def _text_of_drafts(self, window: float) -> str:
        burst = f";burst={self.burst}" if self.burst != self.quota else ""
        return f"{self.quota}{self._length(window)}{burst}"

    def _length(self, window: float) -> str:
        return f";w={int(window)}" if window == int(window) and not self.limit.is_concurrency else ""

    def _text(self, window: float) -> bytes:
        """Return the policy as a member of the field RateLimit-Policy.

        A burst is included only if it differs from the quota. A window is included only if it is a whole number of
        seconds, because the field has no fractions.
        """
        length = self._length(window)
        if self.limit.is_concurrency:
            length = f';qu="{_SLOT_UNIT}"'  # a slot has no window
        burst = f";{_BURST}={self.burst}" if self.burst != self.quota else ""
        return f'"{self.name}";q={self.quota}{length}{burst}'.encode()
