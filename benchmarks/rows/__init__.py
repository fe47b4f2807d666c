"""The rows, one module per family. A new family is a module with ROWS, and a line here."""

from typing import Final

from benchmarks.rows import (
    asgi,
    django,
    fastapi,
    layers,
    litestar,
    memory,
    memory_churn,
    memory_keys,
    production,
    redis,
    redis_async,
    redis_keys,
    redis_node,
    redis_server_side,
    replay,
    routers,
    rules,
    serve,
    served,
    sqlite,
    waiting,
    wsgi,
)
from benchmarks.runner import Row

ROWS: Final[list[Row]] = [
    *memory.ROWS,
    *memory_keys.ROWS,
    *memory_churn.ROWS,
    *asgi.ROWS,
    *litestar.ROWS,
    *served.ROWS,
    *serve.ROWS,
    *wsgi.ROWS,
    *django.ROWS,
    *fastapi.ROWS,
    *production.ROWS,
    *rules.ROWS,
    *routers.ROWS,
    *redis.ROWS,
    *redis_async.ROWS,
    *redis_server_side.ROWS,
    *layers.ROWS,
    *redis_keys.ROWS,
    *redis_node.ROWS,
    *sqlite.ROWS,
    *waiting.ROWS,
    *replay.ROWS,
]
