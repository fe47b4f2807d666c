"""The scripts check every number themselves, before they write any: whoever sends them, not only our own client."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import msgpack
from redis import Redis
from redis.exceptions import ResponseError

from ratelimit_mw import Limit
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.bucket import BucketLimit
from ratelimit_mw.stores.scripts import Codec, script

LIMITS = [
    kind(10, 10, burst=5, max_delay=1) if issubclass(kind, BucketLimit) else kind(10, 10)
    for kind in ALGORITHMS.values()
]
NUMBERS = {  # what the script of each algorithm says that it is told
    "fixed_window": 2,
    "sliding_window_counter": 5,  # the last may be 0: strict
    "sliding_window_log": 3,
    "token_bucket": 5,
    "gcra": 5,
    "leaky_bucket": 6,  # the last may be 0: at_once
}
NOT_WHOLE = [float("nan"), float("inf"), float("-inf"), 0.5, 2**53 + 2, "0x10", "1", "", True, [], {}]
BAD = [*NOT_WHOLE, -1, -0.5]
NOW = 1_700_000_000_000_000

pytestmark = [
    pytest.mark.promise(3),
    pytest.mark.parametrize("codec", ["packed", "text"]),
    pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(limit.algorithm)),
]


def run(client: Redis, codec: Codec, driver: Any, keys: Sequence[str], arguments: object) -> Any:
    encoded = msgpack.encode(arguments) if codec == "packed" else json.dumps(arguments)
    return client.eval(script(driver, codec).text, len(keys), *keys, encoded)


def refused(client: Redis, codec: Codec, driver: Any, arguments: object) -> bool:
    """Whether the script says that a number is wrong, or cannot be compared to one, and leaves nothing behind."""
    with pytest.raises(ResponseError, match=r"ratelimit_mw: .* no whole number|attempt to compare"):
        run(client, codec, driver, ["a", "b"], arguments)
    return client.dbsize() == 0


def used(limit: Limit) -> dict[str, bool]:
    """The parts of the script that the algorithm runs in."""
    return dict.fromkeys(["settle", *limit.needs, limit.algorithm], True)


def charge(limit: Limit) -> list[Any]:
    return [limit.algorithm, "limit", 1, 0, *limit.numbers]


def correction(limit: Limit) -> list[Any]:
    return [limit.algorithm, 1, NOW, *limit.numbers]


def spoiled(limit: Limit, charge: list[Any], first: int) -> list[tuple[list[Any], object]]:
    """The charge with each of its numbers replaced by each bad one; the first four of the limit's also by 0."""
    numbers = len(charge) - len(limit.numbers)
    cases = [(index, bad) for index in range(first, len(charge)) for bad in BAD]
    cases += [(index, 0) for index in range(numbers, min(numbers + 4, len(charge)))]
    return [([*charge[:index], bad, *charge[index + 1 :]], (index, bad)) for index, bad in cases]


def test_each_algorithm_tells_its_own_numbers(limit: Limit, codec: Codec) -> None:
    assert len(limit.numbers) == NUMBERS[limit.algorithm]
    assert all(number >= 1 for number in limit.numbers[:4])
    assert all(type(number) is int for number in limit.numbers)


def test_good_numbers_are_taken(limit: Limit, codec: Codec, client: Redis) -> None:
    reply = run(client, codec, "take", ["a", "b"], [NOW, used(limit), 1, [charge(limit)], [charge(limit)]])
    assert (len(reply), reply[0], reply[8], client.dbsize()) == (16, 1, 1, 2)
    _, taken = limit.decide(None, NOW, 1, 0)
    left, _ = limit.decide(limit.settle(taken, NOW, 1, NOW), NOW, 0, 0)
    shown = run(client, codec, "settle", ["a"], [NOW, used(limit), [correction(limit)]])
    assert (len(shown), shown[1], shown[2], client.dbsize()) == (8, left.limit, left.remaining, 2)


def test_bad_numbers_in_a_charge_of_its_own_charge_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(limit, charge(limit), 2):
        with pytest.raises(ResponseError, match=r"ratelimit_mw: .* no whole number|attempt to compare"):
            run(client, codec, "take", ["a"], [NOW, used(limit), 1, [bad]])
        assert client.dbsize() == 0, what


def test_bad_numbers_in_a_group_charge_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(limit, charge(limit), 2):
        assert refused(client, codec, "take", [NOW, used(limit), 1, [charge(limit), bad]]), what


def test_bad_numbers_in_one_group_charge_no_other(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(limit, charge(limit), 2):
        assert refused(client, codec, "take", [NOW, used(limit), 1, [charge(limit)], [bad]]), what


def test_bad_numbers_correct_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(limit, correction(limit), 2):
        assert refused(client, codec, "settle", [NOW, used(limit), [correction(limit), bad]]), what
    for delta in NOT_WHOLE:
        bad = [limit.algorithm, delta, NOW, *limit.numbers]
        assert refused(client, codec, "settle", [NOW, used(limit), [correction(limit), bad]]), delta


def test_a_bad_time_charges_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for now in BAD:
        assert refused(client, codec, "take", [now, used(limit), 1, [charge(limit)]]), now
        assert refused(client, codec, "settle", [now, used(limit), [correction(limit)]]), now
