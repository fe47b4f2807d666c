"""Tests of `run`, which lets a thread run a coroutine."""

import asyncio

import pytest

from ratelimit_mw.core.runtime import run


async def double(number: int) -> int:
    return 2 * number


async def double_twice(number: int) -> int:
    return await double(await double(number))


def test_run_returns_the_result_of_a_coroutine() -> None:
    assert run(double_twice(3)) == 12


def test_run_raises_the_error_of_a_coroutine() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(fail())


def test_run_ends_a_coroutine_that_suspends_and_raises() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="suspended in a thread"):
        run(wait())
    assert ended == [True]
