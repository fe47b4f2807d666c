"""Stores states in an SQLite file, shared by the processes of one host. Needs no server and no library."""

import os
from collections.abc import Callable
from typing import ClassVar, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import check_int, check_seconds
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.stores.circuit_breaker import CircuitBreaker
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.guarded import AsyncGuardedStore, Guard, GuardedStore
from ratelimit_mw.stores.sqlite.database import FileUse
from ratelimit_mw.stores.sqlite.file_store import FileStore
from ratelimit_mw.stores.sqlite.opening import checked_path


class SQLiteStore(GuardedStore, AsyncGuardedStore):
    """Keeps states in a file that the processes of one host share, for threads (`take`) and for asyncio (`atake`).

    `path`: the absolute path of the file, or a URL such as `sqlite:///run/app/limits.db`. The folder must exist, on a
    local disk or a tmpfs, not on a network file system, and the app's user must be able to write in it. `max_keys`: the
    maximum number of states, at least 1; see `MemoryStore` for what a full store does. `timeout`: seconds for a whole
    call, more than 0. `deny_cache`: seconds for which this process remembers a refusal at most; 0 reads the file every
    time. `clock`: a callable that returns seconds, for tests; None uses the time of the host.

    Raises `ConfigError` for invalid arguments, and for a file or folder that cannot be used. A broken file is moved
    aside, with a warning. The methods raise `StoreError` if the file stays locked until the timeout, or cannot be read
    or written.
    """

    _checks_file: ClassVar[bool] = True  # whether the constructor creates or checks the file
    _owns_file: ClassVar[bool] = True  # whether a call creates a missing file and moves a broken one aside

    @check_arguments()
    def __init__(
        self,
        path: "str | os.PathLike[str]",
        *,
        max_keys: int = 1_000_000,
        timeout: float = 0.05,  # seconds
        deny_cache: float = 1.0,  # seconds
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_int("max_keys", max_keys, 1)
        if not check_seconds("timeout", timeout):
            raise ConfigError("timeout: got 0, expected more than 0 seconds", code="RL-043")
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: got {clock!r}, expected a callable that returns seconds", code="RL-043")
        cache = DenyCache(deny_cache)
        self.path: Final = checked_path(path)
        use = FileUse(checks=self._checks_file, owns=self._owns_file)
        store = FileStore(self.path, max_keys, timeout, clock, use)
        super().__init__(store, Guard(cache, CircuitBreaker(), clock, leases=False), timeout)
