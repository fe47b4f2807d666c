"""The scripts check every number themselves, before they write any: whoever sends them, not only our own client."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import msgpack
from redis import Redis
from redis.exceptions import ResponseError

from ratelimit_mw import Limit, SlidingWindowCounter, TokenBucket
from ratelimit_mw.stores.scripts import Codec, script

LIMITS = [TokenBucket(10, 10, burst=5), SlidingWindowCounter(10, 10)]
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
    """Whether the script says that a number is wrong and leaves nothing behind."""
    with pytest.raises(ResponseError, match=r"ratelimit_mw: .* no whole number"):
        run(client, codec, driver, ["a", "b"], arguments)
    return client.dbsize() == 0


def charge(limit: Limit) -> list[Any]:
    return [limit.algorithm, "limit", 1, 0, *limit.numbers]


def correction(limit: Limit) -> list[Any]:
    return [limit.algorithm, 1, NOW, *limit.numbers]


def spoiled(charge: list[Any], first: int) -> list[tuple[list[Any], object]]:
    """The charge with each of its numbers replaced by each bad one; the numbers of the limit also by 0."""
    limit = len(charge) - 5  # both algorithms have five, and the last may be 0
    cases = [(index, bad) for index in range(first, len(charge)) for bad in BAD]
    cases += [(index, 0) for index in range(limit, limit + 4)]
    return [([*charge[:index], bad, *charge[index + 1 :]], (index, bad)) for index, bad in cases]


def test_good_numbers_are_taken(limit: Limit, codec: Codec, client: Redis) -> None:
    reply = run(client, codec, "take", ["a", "b"], [NOW, [limit.algorithm], 1, [[charge(limit)], [charge(limit)]]])
    assert (len(reply), reply[0], reply[8], client.dbsize()) == (16, 1, 1, 2)
    assert run(client, codec, "settle", ["a"], [NOW, [limit.algorithm], [correction(limit)]]) == 1


def test_bad_numbers_in_a_group_charge_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(charge(limit), 2):
        assert refused(client, codec, "take", [NOW, [limit.algorithm], 1, [[charge(limit), bad]]]), what


def test_bad_numbers_in_one_group_charge_no_other(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(charge(limit), 2):
        assert refused(client, codec, "take", [NOW, [limit.algorithm], 1, [[charge(limit)], [bad]]]), what


def test_bad_numbers_correct_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for bad, what in spoiled(correction(limit), 2):
        assert refused(client, codec, "settle", [NOW, [limit.algorithm], [correction(limit), bad]]), what
    for delta in NOT_WHOLE:
        bad = [limit.algorithm, delta, NOW, *limit.numbers]
        assert refused(client, codec, "settle", [NOW, [limit.algorithm], [correction(limit), bad]]), delta


def test_a_bad_time_charges_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for now in BAD:
        assert refused(client, codec, "take", [now, [limit.algorithm], 1, [[charge(limit)]]]), now
        assert refused(client, codec, "settle", [now, [limit.algorithm], [correction(limit)]]), now
