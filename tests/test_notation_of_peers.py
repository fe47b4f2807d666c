"""`parse` reads the notations of django-ratelimit and of limits (used by slowapi and flask-limiter) as these do.

The rows are the results of running limits 5.8.0 (`parse_many`) and django-ratelimit 4.1.0 (`core._split_rate`):
(quota, seconds) of each limit. Where this package differs, the row also has the peer's result, and a comment has the
reason.
"""

from typing import NamedTuple

import pytest

from ratelimit_mw import ConfigError, parse
from ratelimit_mw.settings import Settings

Rates = list[tuple[int, float]]

SAME_AS_LIMITS: dict[str, Rates] = {
    "1/second": [(1, 1)],
    "1/seconds": [(1, 1)],
    "1/minute": [(1, 60)],
    "1/minutes": [(1, 60)],
    "10/hour": [(10, 3600)],
    "10/hours": [(10, 3600)],
    "3/day": [(3, 86400)],
    "3/days": [(3, 86400)],
    "1000/month": [(1000, 2592000)],
    "2 per months": [(2, 2592000)],
    "100 per minute": [(100, 60)],
    "100 per minutes": [(100, 60)],
    "100  per  minute": [(100, 60)],
    "100 PER Minute": [(100, 60)],
    "100/MINUTE": [(100, 60)],
    "5 per 10 seconds": [(5, 10)],
    "5/10 seconds": [(5, 10)],
    "5/10seconds": [(5, 10)],
    "5 per10seconds": [(5, 10)],
    "5per10seconds": [(5, 10)],
    "10per minute": [(10, 60)],
    "10perminute": [(10, 60)],
    "10 / 5 minute": [(10, 300)],
    " 10 / minute ": [(10, 60)],
    "10/01minute": [(10, 60)],
    "007/day": [(7, 86400)],
    "1/1 second": [(1, 1)],
    "500/7days": [(500, 604800)],
    "2 per 3 hour": [(2, 10800)],
    "1 per 90 seconds": [(1, 90)],
    "1/30days": [(1, 2592000)],
    "10000000/day": [(10000000, 86400)],
    "0/minute": [(0, 60)],  # admits nothing
    "0 per day": [(0, 86400)],
    "10/minute;100/hour": [(10, 60), (100, 3600)],
    "1/second; 5 per minute": [(1, 1), (5, 60)],
    "10/minute,100/hour": [(10, 60), (100, 3600)],
    "10/minute|100/hour": [(10, 60), (100, 3600)],
    "1/second;2/minute;3/hour;4/day": [(1, 1), (2, 60), (3, 3600), (4, 86400)],
    "1 per second | 2 per minute , 3 per hour;4/day": [(1, 1), (2, 60), (3, 3600), (4, 86400)],
    "10/minute;10/minute": [(10, 60), (10, 60)],
    "10/minute ; 100/hour": [(10, 60), (100, 3600)],
    "10\t/\nminute": [(10, 60)],
    " 5 per second ": [(5, 1)],
}

SAME_AS_DJANGO_RATELIMIT: dict[str, Rates] = {
    "0/s": [(0, 1)],  # admits nothing
    "0/m": [(0, 60)],
    "0/60": [(0, 60)],
    "100/s": [(100, 1)],
    "100/m": [(100, 60)],
    "100/h": [(100, 3600)],
    "100/d": [(100, 86400)],
    "10/5m": [(10, 300)],
    "10/10s": [(10, 10)],
    "10/2h": [(10, 7200)],
    "10/7d": [(10, 604800)],
    "5/60": [(5, 60)],
    "100/300": [(100, 300)],
    "100/300s": [(100, 300)],
    "5/1": [(5, 1)],
    "5/3600": [(5, 3600)],
    "1/1s": [(1, 1)],
    "10/05m": [(10, 300)],
    "007/m": [(7, 60)],
    "100/1d": [(100, 86400)],
    "1000/12h": [(1000, 43200)],
    "100/hour": [(100, 3600)],
    "100/hours": [(100, 3600)],
    "100/minute": [(100, 60)],
    "100/min": [(100, 60)],
    "100/sec": [(100, 1)],
    "100/second": [(100, 1)],
    "100/day": [(100, 86400)],
    "10/5min": [(10, 300)],
    "10/5minutes": [(10, 300)],
    "10/30seconds": [(10, 30)],
    "10/2hours": [(10, 7200)],
    "10/2days": [(10, 172800)],
    "10/m using gcra": [(10, 60)],
    "1/36500d": [(1, 3153600000)],
}


class Otherwise(NamedTuple):
    """A text that this package and the peer read differently."""

    text: str
    theirs: Rates
    ours: Rates


# In limits a year has twelve months of 30 days. Here a year has 365 days. "360 days" means 360 days in both.
YEARS = [
    Otherwise("100/year", [(100, 31104000)], [(100, 31536000)]),
    Otherwise("100 per 2 years", [(100, 62208000)], [(100, 63072000)]),
    Otherwise("1 per 100 years", [(1, 3110400000)], [(1, 3153600000)]),
]
# django-ratelimit knows s, m, h and d. It reads only the first letter of a unit, and takes an unknown unit for seconds.
# So these texts never had their obvious meaning there. In this package these texts have that meaning.
HALF_READ = [
    Otherwise("100/month", [(100, 60)], [(100, 30 * 86400)]),
    Otherwise("100/2months", [(100, 120)], [(100, 60 * 86400)]),
    Otherwise("100/week", [(100, 1)], [(100, 7 * 86400)]),
    Otherwise("100/year", [(100, 1)], [(100, 365 * 86400)]),
    Otherwise("100/ms", [(100, 60)], [(100, 0.001)]),
    Otherwise("100/us", [(100, 1)], [(100, 0.000001)]),
    Otherwise("10/5 minutes", [(10, 5)], [(10, 300)]),
    Otherwise("10/ m", [(10, 1)], [(10, 60)]),
    Otherwise("100/H", [(100, 1)], [(100, 3600)]),
    Otherwise("100/M", [(100, 1)], [(100, 60)]),
    Otherwise("100/5M", [(100, 5)], [(100, 300)]),
    Otherwise("10/5m;20/h", [(10, 300)], [(10, 300), (20, 3600)]),  # the text after the first rate is ignored there
    Otherwise("10/m,20/h", [(10, 60)], [(10, 60), (20, 3600)]),
]


class Refused(NamedTuple):
    """A text that the peer reads and that is a ConfigError here. `fix`: the part of the message with the fix."""

    text: str
    theirs: Rates
    fix: str


REFUSED = [
    # limits reads zero periods as one period, which hardly any user intends.
    Refused("10/0 minutes", [(10, 60)], "window: got 0 seconds, expected one microsecond to a hundred years"),
    Refused("5/0day", [(5, 86400)], "window: got 0 seconds, expected one microsecond to a hundred years"),
    # The pattern of limits accepts a stray colon.
    Refused("10/minute:;20/hour", [(10, 60), (20, 3600)], "'10/minute:': unknown word ':' (using, buckets, strict)"),
    # django-ratelimit takes a missing period for a second.
    Refused("5/", [(5, 1)], "expected text such as '100/minute'"),
    # django-ratelimit ignores the text after the rate.
    Refused("10/m burst 5", [(10, 60)], "it goes with 'using token_bucket or gcra or leaky_bucket'"),
    # django-ratelimit accepts the digits of all scripts.
    Refused("\u0661\u0660/m", [(10, 60)], "expected text such as '100/minute'"),
    Refused("10/\u0665m", [(10, 300)], "expected text such as '100/minute'"),
    # Too large to count exactly. This package promises exact counts; the peers do not.
    Refused("9007199254740991/day", [(2**53 - 1, 86400)], "it must stay below 2**52"),
    Refused("9007199254740992/s", [(2**53, 1)], "expected a whole number from 0 to"),
    Refused("99999999999999999999/day", [(99999999999999999999, 86400)], "expected a whole number from 0 to"),
    Refused("1 per 101 years", [(1, 3141504000)], "expected at most a hundred years"),
    Refused("5/99999999999", [(5, 99999999999)], "expected at most a hundred years"),
]

# Texts that a peer does not read, so that its users do not have such texts.
ONLY_HERE: dict[str, Rates] = {
    "10/s": [(10, 1)],  # limits does not read this text
    "10 per min": [(10, 60)],
    "10/week": [(10, 7 * 86400)],
    "10/1.5 minutes": [(10, 90)],
    "10/minute;": [(10, 60)],
    "100/300 burst 20 using gcra": [(100, 300)],
    "100/300 using fixed_window; 5/60": [(100, 300), (5, 60)],
}

# Mistakes in parts of the notation that neither peer has.
HALF_WRITTEN = {
    "100/300 using": "unknown algorithm ''",
    "100/300 usingg gcra": "unknown period 'usingg'",
    "100/300 minuts": "unknown period 'minuts', did you mean 'minute'?",
    "100 per 300": "got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "100/1.5": "got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "10/minute burst using gcra": "expected a whole number after 'burst', such as 'burst 20'",
    "10/minute using gcra burst": "expected a whole number after 'burst', such as 'burst 20'",
    "10/minute using gcra using gcra": "'using' appears twice",
    "10/minute using gcra using fixed_window": "'using' appears twice",
}


def rates(text: str) -> Rates:
    return [(limit.quota, limit.window) for limit in parse(text)]


@pytest.mark.parametrize("text", SAME_AS_LIMITS)
def test_texts_of_limits_have_the_same_meaning(text: str) -> None:
    assert rates(text) == SAME_AS_LIMITS[text]


@pytest.mark.parametrize("text", SAME_AS_DJANGO_RATELIMIT)
def test_texts_of_django_ratelimit_have_the_same_meaning(text: str) -> None:
    assert rates(text) == SAME_AS_DJANGO_RATELIMIT[text]


@pytest.mark.parametrize("row", [*YEARS, *HALF_READ], ids=lambda row: f"{row.text} is not {row.theirs}")
def test_some_texts_have_a_different_meaning_than_in_the_peer(row: Otherwise) -> None:
    assert rates(row.text) == row.ours != row.theirs


def test_the_year_of_limits_can_be_written_as_360_days() -> None:
    assert rates("100/360 days") == YEARS[0].theirs


@pytest.mark.promise(9)
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: ascii(row.text))
def test_unsupported_texts_of_peers_raise_an_error_with_the_fix(row: Refused) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(row.text)
    assert row.fix in str(caught.value)


@pytest.mark.parametrize("text", ONLY_HERE)
def test_texts_outside_the_notation_of_a_peer_are_parsed(text: str) -> None:
    assert rates(text) == ONLY_HERE[text]


@pytest.mark.parametrize("text", HALF_WRITTEN)
def test_mistakes_in_own_parts_of_the_notation_raise_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert HALF_WRITTEN[text] in str(caught.value)


def test_no_limit_is_written_as_an_empty_list() -> None:
    """In django-ratelimit a rate of None means no limit. Here `limits = []` means no limit."""
    with pytest.raises(ConfigError, match=r"^limits: required, such as '100/minute'; \[\] means no limits$"):
        Settings(limits=None)
    assert Settings(limits=[]).limits == []
