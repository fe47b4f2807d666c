"""Tests of `run`, which lets a thread run a coroutine."""

import asyncio

import pytest

from ratelimit_mw.core.runtime import run


async def double(number: int) -> int:
    return 2 * number


async def double_twice(number: int) -> int:
    return await double(await double(number))


def test_the_result_of_a_coroutine_is_returned() -> None:
    assert run(double_twice(3)) == 12


def test_an_error_of_a_coroutine_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(fail())


def test_a_coroutine_that_suspends_is_ended_and_is_an_error() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="suspended in a thread"):
        run(wait())
    assert ended == [True]
