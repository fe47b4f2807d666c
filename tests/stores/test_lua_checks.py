"""The Lua scripts check every number before they write, and do not rely on the checks of this package's client."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import msgpack
from redis import Redis
from redis.exceptions import ResponseError

from algorithms.at_once import TAKEN
from ratelimit_mw import Limit
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.stores.redis.scripts import Codec, script

LIMITS = [
    kind(10, 60, burst=5, max_delay=1) if issubclass(kind, BucketLimit) else kind(10, 60) for kind in TAKEN.values()
]
NUMBERS = {  # how many numbers of a limit the script of each algorithm documents
    "fixed_window": 2,
    "sliding_window_counter": 5,  # the last may be 0: strict
    "sliding_window_log": 3,
    "token_bucket": 6,
    "gcra": 6,
    "leaky_bucket": 6,  # the last may be 0: at_once
    "smooth": 6,  # the last two may be 0: nothing is stored, no warm-up
    "concurrency": 3,
    "calendar_window": 5,
}
SIX = 6  # numbers in each charge; limits with fewer are padded with 1
NOT_WHOLE = [float("nan"), float("inf"), float("-inf"), 0.5, 2**53 + 2, "0x10", "1", "", True, [], {}]
BAD = [*NOT_WHOLE, -1, -0.5]
NOW = 1_700_000_000_000_000

pytestmark = [
    pytest.mark.promise(3),
    pytest.mark.one_redis,
    pytest.mark.parametrize("codec", ["msgpack", "text"]),
    pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(limit.algorithm)),
]


def run(
    client: Redis, codec: Codec, driver: Any, keys: Sequence[str], now: object, charges: list[Any], *groups: object
) -> Any:
    """`groups`: for each group, the number of the distinct group that it equals. By default all groups are distinct."""
    if driver == "take" and not groups:
        groups = tuple(range(1, 1 + len(keys) // charges[2]))
    values = [now, {"take": 1, "settle": 2}[driver], len(groups), *groups, *charges]
    return send(client, codec, driver, keys, values)


def send(client: Redis, codec: Codec, driver: Any, keys: Sequence[str], values: list[Any]) -> Any:
    encoded = json.dumps(values) if codec == "text" else b"".join(map(msgpack.encode, values))
    reply = client.eval(script(driver, codec).text, len(keys), *keys, encoded)
    return msgpack.decode(reply) if codec == "msgpack" else reply


def refused(
    client: Redis, codec: Codec, driver: Any, charges: list[Any], bad: object, keys: str = "ab", now: object = NOW
) -> bool:
    """Check that the script reports the bad number, and return whether it wrote no key."""
    number = type(bad) in {int, float}
    says = r"ratelimit_mw: .* not a whole number" if number else "attempt to compare"
    with pytest.raises(ResponseError, match=says):
        run(client, codec, driver, keys, now, charges)
    return client.dbsize() == 0


def script_args(limit: Limit) -> list[int]:
    return list(limit.script_at(NOW)[1])


def charge(limit: Limit, group: int = 1) -> list[Any]:
    """`group`: the number of charges in its group."""
    return [limit.algorithm, "limit", group, 1, 0, *script_args(limit)]


def correction(limit: Limit, units: object = 1) -> list[Any]:
    return [limit.algorithm, "limit", 1, units, NOW, *script_args(limit)]


def spoiled(charge: list[Any], first: int) -> list[tuple[list[Any], object, int]]:
    """Return copies of the charge, each with a bad number, the bad number and its index.

    Each bad number replaces each number from `first` on. In the first four numbers of the limit, 0 is bad too.
    """
    numbers = len(charge) - SIX
    cases: list[tuple[int, object]] = [(index, bad) for index in range(first, len(charge)) for bad in BAD]
    cases += [(index, 0) for index in range(numbers, numbers + 4)]
    return [([*charge[:index], bad, *charge[index + 1 :]], bad, index) for index, bad in cases]


def test_limit_has_as_many_whole_numbers_as_its_script_documents(limit: Limit, codec: Codec) -> None:
    numbers, padding = script_args(limit)[: NUMBERS[limit.algorithm]], script_args(limit)[NUMBERS[limit.algorithm] :]
    assert (len(numbers) + len(padding), set(padding) - {1}) == (SIX, set())
    assert all(number >= 1 for number in numbers[:4])
    assert all(type(number) is int for number in numbers)


def test_scripts_accept_valid_numbers(limit: Limit, codec: Codec, client: Redis) -> None:
    reply = run(client, codec, "take", ["a", "b"], NOW, charge(limit) + charge(limit))
    assert ([len(decision) for decision in reply], [decision[0] for decision in reply]) == ([8, 8], [1, 1])
    assert client.dbsize() == 2
    _, taken = limit.decide(None, NOW, 1, 0)
    left, _ = limit.decide(limit.settle(taken, NOW, 1, NOW), NOW, 0, 0)
    (shown,) = run(client, codec, "settle", ["a"], NOW, correction(limit))
    assert (shown[1], shown[2], client.dbsize()) == (left.limit, left.remaining, 2)


def test_bad_number_in_a_single_charge_writes_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for wrong, bad, where in spoiled(charge(limit), 3):
        assert refused(client, codec, "take", wrong, bad, "a"), (where, bad)


def test_bad_number_in_a_group_writes_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for wrong, bad, where in spoiled(charge(limit, group=2), 2):
        assert refused(client, codec, "take", charge(limit, group=2) + wrong, bad), (where, bad)


def test_bad_number_in_one_group_charges_no_other_group(limit: Limit, codec: Codec, client: Redis) -> None:
    for wrong, bad, where in spoiled(charge(limit), 2):
        assert refused(client, codec, "take", charge(limit) + wrong, bad), (where, bad)


def test_wrong_group_length_charges_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for first, second in (1, 0), (0, 1), (0, 0), (2, 2), (2, 0):
        charges = charge(limit, first) + charge(limit, second)
        with pytest.raises(ResponseError, match="ratelimit_mw: the groups have more or fewer charges"):
            run(client, codec, "take", ["a", "b"], NOW, charges, 1, 2)
    for first, second in (1, 2), (3, 3), (3, 1):
        with pytest.raises(ResponseError, match="attempt to compare"):
            run(client, codec, "take", ["a", "b"], NOW, charge(limit, first) + charge(limit, second), 1, 2)
    assert client.dbsize() == 0


def test_wrong_group_index_or_count_charges_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for groups in (1,), (1, 1, 1), (1, 2), (0, 1), (1, -1), (1, 1.5), (1, "1"), (1, True), (1, [1]), (1, float("nan")):
        with pytest.raises(ResponseError, match="ratelimit_mw: the groups have more or fewer charges"):
            run(client, codec, "take", ["a", "b"], NOW, charge(limit), *groups)
    counts: list[object] = [-1, 0.5, 3, "1", [], {}, float("nan")]
    for many in counts:
        encoded = [NOW, 1, many, 1, 1, *charge(limit)]
        with pytest.raises(ResponseError):
            send(client, codec, "take", ["a", "b"], encoded)
    assert client.dbsize() == 0


def test_equal_groups_charge_different_keys(limit: Limit, codec: Codec, client: Redis) -> None:
    other = [*charge(limit)[:3], 2, *charge(limit)[4:]]  # of cost 2
    reply = run(client, codec, "take", ["a", "b", "c"], NOW, other + charge(limit), 2, 1, 2)
    alone = [
        run(client, codec, "take", [key], NOW, one)
        for key, one in zip("xyz", (charge(limit), other, charge(limit)), strict=True)
    ]
    assert reply == [*alone[0], *alone[1], *alone[2]]


def test_missing_numbers_charge_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for short in charge(limit)[:-1], charge(limit)[:6]:
        assert refused(client, codec, "take", short, None, "a")
        assert refused(client, codec, "take", charge(limit) + short, None)
        assert refused(client, codec, "take", short + charge(limit), None)
    assert refused(client, codec, "settle", correction(limit) + correction(limit)[:-1], None)
    assert refused(client, codec, "settle", correction(limit), None)


def test_bad_number_in_a_settlement_writes_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for wrong, bad, where in spoiled(correction(limit), 4):
        assert refused(client, codec, "settle", correction(limit) + wrong, bad), (where, bad)
    for delta in NOT_WHOLE:
        assert refused(client, codec, "settle", correction(limit) + correction(limit, delta), delta), delta


def test_bad_time_writes_nothing(limit: Limit, codec: Codec, client: Redis) -> None:
    for now in BAD:
        assert refused(client, codec, "take", charge(limit), now, "a", now), now
        assert refused(client, codec, "settle", correction(limit), now, "a", now), now
