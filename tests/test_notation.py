"""The notation of limits: valid texts, invalid texts, and that parsing a limit's notation restores the limit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from algorithms.strategies import of_each_algorithm
from ratelimit_mw import (
    GCRA,
    ConfigError,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
    parse,
)
from ratelimit_mw.algorithms import ALGORITHMS, DEFAULT
from ratelimit_mw.algorithms.bucket import DelayableLimit

MINUTE, HOUR, DAY = 60, 3600, 86400

MEANS: dict[str, list[Limit]] = {
    "100/minute": [SlidingWindowCounter(100, MINUTE)],
    "100 per minute": [SlidingWindowCounter(100, MINUTE)],
    "  100  /  1  minute ": [SlidingWindowCounter(100, MINUTE)],
    "100/MINUTE Using Token_Bucket": [TokenBucket(100, MINUTE)],
    "5 per 10 seconds": [SlidingWindowCounter(5, 10)],
    "500/7days": [SlidingWindowCounter(500, 7 * DAY)],
    "1 per 1.5 hours": [SlidingWindowCounter(1, 5400)],
    "10/0.25 seconds": [SlidingWindowCounter(10, 0.25)],
    "2/250ms": [SlidingWindowCounter(2, 0.25)],
    "3/1000001us": [SlidingWindowCounter(3, 1.000001)],
    "007/minute": [SlidingWindowCounter(7, MINUTE)],
    "100/minute burst 20 using token_bucket": [TokenBucket(100, MINUTE, burst=20)],
    "100/minute using token_bucket burst 20": [TokenBucket(100, MINUTE, burst=20)],
    "60/hour using sliding_window_counter buckets 10 strict": [SlidingWindowCounter(60, HOUR, buckets=10, strict=True)],
    "100/minute using fixed_window": [FixedWindow(100, MINUTE)],
    "100/minute using sliding_window_log": [SlidingWindowLog(100, MINUTE)],
    "100/minute using gcra": [GCRA(100, MINUTE)],
    "100/minute burst 20 using gcra": [GCRA(100, MINUTE, burst=20)],
    "100/minute using leaky_bucket": [LeakyBucket(100, MINUTE)],
    "100/minute burst 20 using leaky_bucket at_once 8": [LeakyBucket(100, MINUTE, burst=20, at_once=8)],
    "100/minute at_once 0 using leaky_bucket": [LeakyBucket(100, MINUTE, at_once=0)],
    "5/second using smooth": [Smooth(5, 1)],
    "5/second using smooth warmup 4 cold_factor 3 max_burst 1": [Smooth(5, 1, warmup=4)],
    "5/second warmup 0.5 cold_factor 10 using smooth": [Smooth(5, 1, warmup=0.5, cold_factor=10)],
    "300/minute max_burst 2.25 using smooth": [Smooth(300, MINUTE, max_burst=2.25)],
    "5/second max_burst 0 using smooth": [Smooth(5, 1, max_burst=0.0)],
    "5/minute; 100 per hour using gcra": [SlidingWindowCounter(5, MINUTE), GCRA(100, HOUR)],
    "60/hour strict buckets 10": [SlidingWindowCounter(60, HOUR, buckets=10, strict=True)],
    "100/minute burst 20 using token_bucket; 1000/hour": [
        TokenBucket(100, MINUTE, burst=20),
        SlidingWindowCounter(1000, HOUR),
    ],
    "10/hour, 100/day | 2000 per year;": [
        SlidingWindowCounter(10, HOUR),
        SlidingWindowCounter(100, DAY),
        SlidingWindowCounter(2000, 365 * DAY),
    ],
}

PERIODS = {
    0.001: "ms",
    1: "s sec secs second seconds",
    MINUTE: "m min mins minute minutes",
    HOUR: "h hr hrs hour hours",
    DAY: "d day days",
    7 * DAY: "week weeks",
    30 * DAY: "month months",
    365 * DAY: "year years",
}

WRONG = {
    "": "got '', expected text such as '100/minute'",
    " ;, ": "got ' ;, ', expected text such as '100/minute'",
    "minute": "'minute': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "100": "'100': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "-5/minute": "'-5/minute': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "1.5/minute": "'1.5/minute': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "\u0661/minute": "'\u0661/minute': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
    "10/mfoo": "'10/mfoo': unknown period 'mfoo' (us, ms, second, minute, hour, day, week, month, year)",
    "10/minutte": "'10/minutte': unknown period 'minutte', did you mean 'minute'? "
    "(us, ms, second, minute, hour, day, week, month, year)",
    "5/0 seconds": "'5/0 seconds': window: got 0 seconds, expected one microsecond to a hundred years",
    "5/101 years": "'5/101 years': window: got 3185136000 seconds, expected at most a hundred years",
    "10/minute using gcr": "'10/minute using gcr': unknown algorithm 'gcr', did you mean 'gcra'? (fixed_window, "
    "sliding_window_counter, sliding_window_log, token_bucket, gcra, leaky_bucket, smooth, calendar_window)",
    "10/minute using": "'10/minute using': unknown algorithm ''",
    "10/minute burst 5": "'10/minute burst 5': 'burst' does not go with sliding_window_counter; it goes with "
    "'using token_bucket or gcra or leaky_bucket'",
    "10/minute burst 5 using fixed_window": "'10/minute burst 5 using fixed_window': 'burst' does not go with "
    "fixed_window; it goes with 'using token_bucket or gcra or leaky_bucket'",
    "10/minute at_once 5 using sliding_window_log": "'10/minute at_once 5 using sliding_window_log': 'at_once' does "
    "not go with sliding_window_log; it goes with 'using leaky_bucket'",
    "10/minute using gcra at_once 5": "'10/minute using gcra at_once 5': 'at_once' does not go with gcra; it goes with "
    "'using leaky_bucket'",
    "10/minute using leaky_bucket buckets 2": "'10/minute using leaky_bucket buckets 2': 'buckets' does not go with "
    "leaky_bucket; it goes with 'using sliding_window_counter'",
    "10/minute using leaky_bucket at_once 11": "'10/minute using leaky_bucket at_once 11': at_once: got 11, expected "
    "at most the burst, 10",
    "10/minute burst 5 using leaky_bucket at_once -1": "'10/minute burst 5 using leaky_bucket at_once -1': at_once: "
    "got '-1', expected a whole number after 'at_once'",
    "10/minute using leaky_bucket at_onc 5": "'10/minute using leaky_bucket at_onc 5': unknown word 'at_onc', did you "
    "mean 'at_once'? (using, burst, at_once)",
    "10/minute using gcra max_delay 5": "'10/minute using gcra max_delay 5': unknown word 'max_delay' (using, burst)",
    "100001/day using sliding_window_log": "'100001/day using sliding_window_log': quota: got 100001, expected at "
    "most 100000",
    "10/minute using token_bucket strict": "'10/minute using token_bucket strict': 'strict' does not go with "
    "token_bucket; it goes with 'using sliding_window_counter'",
    "10/minute using token_bucket burst": "'10/minute using token_bucket burst': burst: got '', expected a whole "
    "number after 'burst'",
    "10/minute buckets 1.5": "'10/minute buckets 1.5': buckets: got '1.5', expected a whole number after 'buckets'",
    "10/minute buckets -1": "'10/minute buckets -1': buckets: got '-1', expected a whole number after 'buckets'",
    "5/second using smooth warmup": "'5/second using smooth warmup': warmup: got '', expected seconds after "
    "'warmup', such as 'warmup 1.5'",
    "5/second using smooth max_burst -1": "'5/second using smooth max_burst -1': max_burst: got '-1', expected seconds",
    "5/second using smooth warmup 1e3": "'5/second using smooth warmup 1e3': warmup: got '1e3', expected seconds",
    "5/second using smooth warmup 4 cold_factor 2.5": "'5/second using smooth warmup 4 cold_factor 2.5': cold_factor: "
    "got '2.5', expected a whole number after 'cold_factor'",
    "5/second using smooth burst 5": "'5/second using smooth burst 5': 'burst' does not go with smooth; it goes with "
    "'using token_bucket or gcra or leaky_bucket'",
    "5/second warmup 4": "'5/second warmup 4': 'warmup' does not go with sliding_window_counter; it goes with "
    "'using smooth'",
    "5/second using smooth max_burst 2 warmup 4": "'5/second using smooth max_burst 2 warmup 4': max_burst: got 2.0 "
    "with a warmup",
    "5/second using smooth cold_factor 5": "'5/second using smooth cold_factor 5': cold_factor: got 5 without warmup",
    "10/minute buckets 2 buckets 2": "'10/minute buckets 2 buckets 2': 'buckets' appears twice",
    "10/minute strickt": "'10/minute strickt': unknown word 'strickt', did you mean 'strict'? (using, buckets, strict)",
    "5/minute; 10/mfoo": "'10/mfoo': unknown period 'mfoo'",
    "1,000/s": "'1': got no rate, expected text such as '100/minute' or '5 per 10 seconds'; a comma separates limits: "
    "write 1000 for 1,000",
    "5/minute; 1,000,000/day": "'1': got no rate, expected text such as '100/minute' or '5 per 10 seconds'; a comma "
    "separates limits: write 1000000 for 1,000,000",
    "10r/s": "'10r/s': got no rate, expected text such as '100/minute' or '5 per 10 seconds'; write '10/s'",
    "rate=30r/m burst 5": "'rate=30r/m burst 5': got no rate, expected text such as '100/minute' or '5 per 10 seconds'"
    "; write '30/m burst 5'",
    "10/s burst=20": "'10/s burst=20': unknown word 'burst=20', did you mean 'burst 20 using leaky_bucket'? "
    "(using, buckets, strict)",
    "10/s burst=20 using gcra": "'10/s burst=20 using gcra': unknown word 'burst=20', did you mean 'burst 20'? "
    "(using, burst)",
    "10/s using=gcra": "'10/s using=gcra': unknown word 'using=gcra', did you mean 'using gcra'? (using, ",
    "100/minute token_bucket": "'100/minute token_bucket': unknown word 'token_bucket', did you mean "
    "'using token_bucket'? (using, buckets, strict)",
    "100/minute fixed-window": "'100/minute fixed-window': unknown word 'fixed-window', did you mean "
    "'using fixed_window'? (",
    "100/minute using sliding_window": "'100/minute using sliding_window': unknown algorithm 'sliding_window', did you "
    "mean 'sliding_window_counter'? (",
    "100/minute using leaky": "'100/minute using leaky': unknown algorithm 'leaky', did you mean 'leaky_bucket'? (",
    "100/minute using moving-window": "'100/minute using moving-window': unknown algorithm 'moving-window', did you "
    "mean 'sliding_window_log'? (",
}


@pytest.mark.parametrize("text", MEANS)
def test_parse_returns_the_limits_of_a_text(text: str) -> None:
    assert list(parse(text)) == MEANS[text]


@pytest.mark.parametrize(("seconds", "words"), PERIODS.items())
def test_all_spellings_of_periods_are_parsed(seconds: float, words: str) -> None:
    for word in words.split():
        assert parse(f"3/{word}; 3 per 2 {word}") == (DEFAULT(3, seconds), DEFAULT(3, 2 * seconds))


@pytest.mark.promise(9)
@pytest.mark.parametrize("text", WRONG)
def test_error_for_invalid_text_quotes_the_text_and_describes_the_fix(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(WRONG[text])


@pytest.mark.parametrize("value", [None, 5, 1.5, b"10/minute", ["10/minute"], {"limit": "10/minute"}, object()])
def test_values_other_than_text_raise_a_config_error(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^got .*, expected text such as '100/minute'$"):
        parse(value)


def test_very_long_text_raises_a_config_error() -> None:
    for text in ("1/minute;" * 200, "9" * 5000, f"1/{'9' * 980} seconds", f"{'9' * 980}/second", " " * 100_000):
        with pytest.raises(ConfigError):
            parse(text)


@given(st.one_of(*of_each_algorithm.values()))
def test_parsing_the_notation_of_a_limit_restores_it(limit: Limit) -> None:
    (read,) = parse(limit.notation)
    assert (type(read), read.notation, read.bucket) == (type(limit), limit.notation, limit.bucket)
    plain = replace(limit, max_delay=0.0) if isinstance(limit, DelayableLimit) else limit  # max_delay is never written
    assert (read.quota, read.window_us, read.numbers) == (limit.quota, limit.window_us, plain.numbers)


def test_parsing_a_notation_restores_at_once() -> None:
    (limit,) = parse("100/minute burst 20 using leaky_bucket at_once 8")
    assert limit.notation == "100/60s burst 20 at_once 8 using leaky_bucket"
    assert parse(limit.notation) == (limit,)


WORDS = "0 1 5 10 1.5 1e9 9999999999 / per ; , | using burst at_once buckets strict warmup max_burst minute s us ms"
words = st.sampled_from([*WORDS.split(" "), *ALGORITHMS])


@given(st.one_of(st.text(), st.lists(words).map(" ".join), st.lists(words).map("".join)))
def test_parsing_any_text_returns_limits_or_raises_a_config_error(text: str) -> None:
    try:
        limits = parse(text)
    except ConfigError:
        return
    assert limits
    assert all(parse(limit.notation) for limit in limits)
