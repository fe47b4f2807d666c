"""An address is counted in one form, however it is written."""

import pytest

from ratelimit_mw.client_ip import client_address

pytestmark = pytest.mark.promise(10)

ROWS: list[tuple[str | None, int, str | None]] = [  # what the server wrote, the prefix, how it is counted
    ("192.0.2.1", 64, "192.0.2.1"),
    ("192.0.2.1", 32, "192.0.2.1"),
    ("0.0.0.0", 64, "0.0.0.0"),  # noqa: S104  # an address like any other here
    ("2001:db8::1", 64, "2001:db8::/64"),
    ("2001:DB8:0:0:ffff::1", 64, "2001:db8::/64"),
    ("2001:db8:0:1::1", 64, "2001:db8:0:1::/64"),
    ("2001:db8:0:1::1", 48, "2001:db8::/48"),
    ("2001:db8:ffff::1", 32, "2001:db8::/32"),
    ("2001:db8::1", 128, "2001:db8::1"),
    ("2001:0db8:0000::0001", 128, "2001:db8::1"),
    ("::1", 64, "::/64"),
    # an IPv4 client: the prefix of IPv6 must not throw all of them into one network
    ("::ffff:192.0.2.1", 64, "192.0.2.1"),
    ("::FFFF:c000:0201", 64, "192.0.2.1"),
    ("::ffff:192.0.2.1", 32, "192.0.2.1"),
    ("64:ff9b::192.0.2.1", 64, "192.0.2.1"),
    ("64:ff9b::c000:201", 64, "192.0.2.1"),
    ("64:ff9b:1::c000:201", 64, "64:ff9b:1::/64"),  # local NAT64 prefixes are anyone's
    ("2001:db8::192.0.2.1", 64, "2001:db8::/64"),  # ordinary IPv6, written oddly
    ("::192.0.2.1", 64, "::/64"),  # IPv4-compatible, deprecated: no IPv4 client
    # the client chooses the zone
    ("fe80::1%eth0", 64, "fe80::/64"),
    ("fe80::1%" + "x" * 50, 64, "fe80::/64"),
    ("::ffff:192.0.2.1%1", 64, "192.0.2.1"),
    ("fe80::1%", 128, "fe80::1"),
    (None, 64, None),
    ("", 64, None),
    (" ", 64, None),
    ("unix:", 64, None),
    ("localhost", 64, None),
    ("unknown", 64, None),
    ("192.0.2.1:5678", 64, None),
    ("[2001:db8::1]", 64, None),
    ("192.0.2.1, 192.0.2.2", 64, None),
    ("192.0.2.1\n", 64, None),
    (" 192.0.2.1", 64, None),
    ("192.0.2.01", 64, None),
    ("192.0.2", 64, None),
    ("3221225985", 64, None),
    ("0xc0000201", 64, None),
    ("１９２.0.2.1", 64, None),  # noqa: RUF001  # full-width digits
    ("192.0.2.1/32", 64, None),
    ("%", 64, None),
    ("x" * 10_000_000, 64, None),
    ("1" * 65, 64, None),
    ("fe80::1%" + "x" * 57, 64, None),  # 65 characters
    ("::" * 32, 64, None),
    ("\x00", 64, None),
    ("\ud800", 64, None),
]


@pytest.mark.parametrize(("host", "prefix", "counted"), ROWS, ids=[ascii(host)[:40] for host, _, _ in ROWS])
def test_address(host: str | None, prefix: int, counted: str | None) -> None:
    assert client_address(host, prefix) == counted


def test_every_ipv4_client_has_a_bucket_of_its_own() -> None:
    hosts = [f"::ffff:192.0.{high}.{low}" for high in range(8) for low in range(256)]
    assert len({client_address(host, 64) for host in hosts}) == len(hosts)


def test_one_network_is_one_bucket_and_the_next_one_another() -> None:
    inside = {client_address(f"2001:db8:0:1:{part:x}::{part:x}", 64) for part in range(1, 500)}
    assert inside == {"2001:db8:0:1::/64"}
    assert client_address("2001:db8:0:2::1", 64) not in inside
