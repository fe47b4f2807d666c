"""The rows, one module per family. A new family is a module with ROWS, and a line here."""

from typing import Final

from benchmarks.rows import asgi, memory, redis, wsgi
from benchmarks.runner import Row

ROWS: Final[list[Row]] = [*memory.ROWS, *asgi.ROWS, *wsgi.ROWS, *redis.ROWS]
