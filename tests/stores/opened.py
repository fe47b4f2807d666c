"""Opens a Redis store for threads, or one for asyncio with a blocking interface."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import pytest

from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing.blocking import blocking

Open = Callable[..., AbstractContextManager[Store]]


@contextmanager
def threads(url: str, **options: Any) -> Iterator[Store]:
    with closing(RedisStore(url, **options)) as store:
        yield store


@contextmanager
def tasks(url: str, **options: Any) -> Iterator[Store]:
    with blocking(AsyncRedisStore(url, **options)) as store:
        yield store


each_kind = pytest.mark.parametrize("opened", [threads, tasks])
