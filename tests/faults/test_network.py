"""Tests network faults between an app and its store, under load over ASGI and WSGI, until the network works again."""

from collections.abc import Callable

import pytest

from faults.load import STORE_TIMEOUT, Load
from faults.servers import leaves_nothing
from faulty_proxy import FaultyProxy, Mode
from redis_servers import RedisServer

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8), pytest.mark.promise(6)]

Tell = Callable[[float], None]


def endured(face: type[Load], server: RedisServer, mode: Mode, late: float = 0.0) -> tuple[Load, float]:
    """Run a load during which this fault begins and ends.

    Returns the load, and the seconds from the end of the fault until the store decided again.
    """
    with FaultyProxy(server.port, late) as proxy, face(store=proxy.url) as load:
        load.goes_on()
        proxy.mode = mode
        load.goes_on_without(felt=not 0.0 < late < STORE_TIMEOUT)
        proxy.mode = "passes"
        seconds = load.recovers()
    load.held()
    leaves_nothing(server)
    return load, seconds


def test_app_survives_replies_that_are_late_within_the_timeout(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "is late", STORE_TIMEOUT / 5)[1])


def test_app_survives_replies_that_are_later_than_the_timeout(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "is late", STORE_TIMEOUT * 4)[1])


def test_app_survives_replies_that_arrive_byte_by_byte(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "drips")[1])


def test_app_survives_connections_that_end_after_the_request(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "drops")[1])


def test_app_survives_connections_that_are_reset(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "resets")[1])


def test_app_survives_a_network_that_discards_commands(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    tell_recovery(endured(served, redis_server, "swallows")[1])
