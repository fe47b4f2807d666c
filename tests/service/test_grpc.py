"""Tests the rate limit service of Envoy with calls as Envoy sends them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from ratelimit_mw.service import service
from ratelimit_mw.service.grpc import GrpcServer
from ratelimit_mw.service.grpc_messages import MESSAGES, OK, OVER_LIMIT, SERVICE
from ratelimit_mw.testing import Control
from redis_servers import free_port

METHOD = f"/{SERVICE}/ShouldRateLimit"
SECRET = "sixteen-letters!"
Text = str | bytes
Entries = Sequence[tuple[Text, Text]]


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def request(*descriptors: Entries, hits: int = 0, own: int | None = None) -> bytes:
    """Return a serialized `RateLimitRequest`."""
    made = MESSAGES["RateLimitRequest"](domain="web", hits_addend=hits)
    for entries in descriptors:
        descriptor = made.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=_bytes(key), value=_bytes(value))
        if own is not None:
            descriptor.hits_addend.value = own
    sent: bytes = made.SerializeToString()
    return sent


def answers(app: Any, *sent: bytes, address: str | None = None, metadata: Any = ()) -> list[Any]:
    """Send the calls, and return each response, or the code and the text of its error."""

    async def run() -> list[Any]:
        place = address or f"127.0.0.1:{free_port()}"
        server = GrpcServer(app, [place])
        await server.start()
        try:
            async with grpc.aio.insecure_channel(place) as channel:
                call: Any = channel.unary_unary(METHOD, response_deserializer=MESSAGES["RateLimitResponse"].FromString)
                return [await one(call, body) for body in sent]
        finally:
            await server.stop()

    async def one(call: Any, body: bytes) -> Any:
        try:
            return await call(body, metadata=metadata, timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()

    return asyncio.run(run())


def made(**options: Any) -> Any:
    return service({"trusted_proxies": ["127.0.0.1", "unix:"], **options})


def fields(answer: Any) -> dict[str, str]:
    return {field.key: field.value for field in answer.response_headers_to_add}


BOB = (("remote_address", "192.0.2.7"), ("path", "/a?x"), ("method", "POST"))


def test_calls_are_admitted_and_refused(ratelimit: Control) -> None:
    ratelimit.freeze()
    rule = {"path": "/a", "methods": ["POST"], "limits": "3/minute using fixed_window", "name": "a"}
    app = made(limits="9/day", rules=[rule])
    admitted, refused = answers(app, request(BOB, hits=2), request(BOB, hits=2))
    assert (admitted.overall_code, refused.overall_code) == (OK, OVER_LIMIT)
    assert fields(admitted) == {"ratelimit-policy": '"a";q=3;w=60', "ratelimit": '"a";r=1;t=60'}
    (status,) = admitted.statuses
    assert (status.code, status.limit_remaining, status.duration_until_reset.seconds) == (OK, 1, 60)
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (3, 2)
    assert fields(refused)["retry-after"] == "60"
    assert fields(refused)["content-type"] == "application/problem+json"
    assert b'"violated-policies":["a"]' in refused.raw_body
    assert refused.statuses[0].code == OVER_LIMIT


def test_several_descriptors_are_charged_all_or_nothing(ratelimit: Control) -> None:
    ratelimit.freeze()
    app = made(limits="3/day using fixed_window", app_limits="10/day using fixed_window", key="ip")
    ann = (("remote_address", "192.0.2.8"), ("path", "/"))
    both, *_, refused, last = answers(
        app, request(BOB, ann), request(ann), request(ann), request(BOB, ann), request(BOB, hits=2)
    )
    assert [status.limit_remaining for status in both.statuses] == [2, 2]
    assert refused.overall_code == OVER_LIMIT
    assert [status.code for status in refused.statuses] == [OK, OVER_LIMIT]
    assert (last.overall_code, last.statuses[0].limit_remaining) == (OK, 0)  # the refused call charged nothing to BOB


def test_descriptor_cost_overrides_the_cost_of_the_call(ratelimit: Control) -> None:
    ratelimit.freeze()
    app = made(limits="10/day using fixed_window")
    sent = [request(BOB), request(BOB, hits=3), request(BOB, hits=3, own=2), request(BOB, hits=3, own=0)]
    assert [answer.statuses[0].limit_remaining for answer in answers(app, *sent)] == [9, 6, 4, 4]


def test_entries_become_parts_of_a_request(ratelimit: Control) -> None:
    ratelimit.freeze()
    rules = [
        {"path": "/u", "limits": "5/day", "key": "user", "name": "u"},
        {"path": "/h", "limits": "5/day", "key": "header:generic-key", "name": "h"},
        {"path": "/", "limits": "5/day", "key": "header:anything", "name": "root"},
    ]
    app = made(limits="9/day", rules=rules)
    sent = [
        request((("path", "/u"), ("user", "bob"))),
        request((("path", "/u"), ("user", "bob"))),
        request((("path", "/h"), ("generic_key", "x"))),
        request((("path", "/h"), ("Generic-Key", "x"))),
        request((("anything", "1"), ("remote_address", "no address"))),
    ]
    found = [
        (fields(answer)["ratelimit-policy"].partition(";")[0], answer.statuses[0].limit_remaining)
        for answer in answers(app, *sent)
    ]
    assert found == [('"u"', 4), ('"u"', 3), ('"h"', 4), ('"h"', 3), ('"root"', 4)]


def test_shadow_limits_and_exempt_paths_admit(ratelimit: Control) -> None:
    ratelimit.freeze()
    app = made(limits=[{"limit": "1/day", "shadow": True}], exempt=["/free"])
    shadow = answers(app, request(BOB), request(BOB), request((("path", "/free"),)))
    assert [answer.overall_code for answer in shadow] == [OK] * 3
    assert [answer.statuses[0].code for answer in shadow] == [OK] * 3


def test_blocked_client_and_denying_store_refuse() -> None:
    blocked = made(limits="9/day", blocklist=["192.0.2.7"])
    denying = made(limits="9/day", store="redis://127.0.0.1:1/0", on_store_error="deny")
    for app, status in ((blocked, b'"status":403'), (denying, b'"status":503')):
        (answer,) = answers(app, request(BOB))
        assert (answer.overall_code, answer.statuses[0].code) == (OVER_LIMIT, OVER_LIMIT)
        assert status in answer.raw_body


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (request(), "descriptors: got 0, expected 1 to 64"),
        (request(*[BOB] * 65), "descriptors: got 65, expected 1 to 64"),
        (request(BOB, ()), "descriptors[1].entries: got none, expected at least one"),
        (request(BOB, own=2**63), f"descriptors[0].hits_addend: got {2**63}, expected less than {2**53}"),
    ],
)
def test_invalid_call_is_an_error(sent: bytes, text: str) -> None:
    assert answers(made(limits="9/day"), sent) == [(grpc.StatusCode.INVALID_ARGUMENT, text)]


def test_undecodable_message_is_an_error() -> None:
    ((code, _), answer) = answers(made(limits="9/day"), b"\xff\xff", request(BOB))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.overall_code == OK


def test_any_bytes_are_decided_and_different_bytes_have_own_buckets(ratelimit: Control) -> None:
    """Envoy admits a call that fails."""
    ratelimit.freeze()
    rules = [
        {"path": "/u", "limits": "1/day", "key": "user", "name": "u"},
        {"path": "/h", "limits": "1/day", "key": "header:x-key", "name": "h"},
    ]
    app = made(limits="9/day", rules=rules)
    values: list[Text] = [
        b"\xff",
        b"\xfe",
        b"\xed\xb3\xbf",
        "\ufffd",
        "x" * 100_000,
        "x" * 100_001,
        b"\xff" * 2000,
        b"\xfe" * 2000,
    ]
    for path, name in (("/u", "user"), ("/h", "x_key")):
        sent = [request((("path", path), (name, value))) for value in values]
        codes = [answer.overall_code for answer in answers(app, *sent, *sent)]
        assert codes == [OK] * len(values) + [OVER_LIMIT] * len(values)
    odd = (("path", b"/\xff%ff"), ("method", b"\xff"), ("remote_address", b"\xff"), (b"\xff", b"\xff"))
    (answer,) = answers(app, request(odd))
    assert answer.overall_code == OK


def test_long_path_is_refused() -> None:
    paths: list[Text] = ["/" + "a" * 8191, "/" + "a" * 8192, "/a?" + "%" * 8190]
    admitted, *refused = answers(made(limits="9/day"), *(request(BOB, (("path", path),)) for path in paths))
    assert admitted.overall_code == OK
    for answer in refused:
        assert answer.overall_code == OVER_LIMIT
        assert [status.code for status in answer.statuses] == [OVER_LIMIT, OVER_LIMIT]
        assert fields(answer)["content-type"] == "application/problem+json"
        assert b'"status":414' in answer.raw_body


def test_calls_need_a_trusted_proxy_and_the_secret(tmp_path: Path) -> None:
    stranger = service({"limits": "1/day", "trusted_proxies": ["10.0.0.0/8"]})
    ((code, text),) = answers(stranger, request(BOB))
    assert (code, text.partition(":")[0]) == (grpc.StatusCode.PERMISSION_DENIED, "trusted_proxies")
    secret = service({"limits": "1/day", "trusted_proxies": ["127.0.0.1"]}, secret=SECRET)
    for metadata in ((), (("x-ratelimit-secret", "wrong"),)):
        ((code, text),) = answers(secret, request(BOB), metadata=metadata)
        assert (code, text.partition(":")[0]) == (grpc.StatusCode.PERMISSION_DENIED, "X-RateLimit-Secret")
    (answer,) = answers(secret, request(BOB), metadata=(("x-ratelimit-secret", SECRET),))
    assert answer.overall_code == OK
    (answer,) = answers(made(limits="1/day"), request(BOB), address=f"unix:{tmp_path}/grpc.sock")
    assert answer.overall_code == OK


TOKENS: Any = {"limits": [{"limit": "100/hour using fixed_window", "overdraw": True}], "key": "header:generic-key"}
ASK = [("generic_key", "tokens")]


def test_a_hits_addend_of_0_asks_for_one_and_takes_nothing() -> None:
    app = made(**TOKENS)
    sent = [request(ASK, own=0), request(ASK, own=0), request(ASK, own=99), request(ASK, own=0), request(ASK, own=1)]
    got = answers(app, *sent, request(ASK, own=0))
    assert [answer.overall_code for answer in got] == [OK, OK, OK, OK, OK, OVER_LIMIT]
    assert [answer.statuses[0].limit_remaining for answer in (got[1], got[3])] == [100, 1]


def test_a_report_overdraws_by_at_most_one_quota_and_other_requests_are_refused() -> None:
    app = made(**TOKENS)
    got = answers(app, request(ASK, own=99), request(ASK, own=500), request(ASK, own=500), request(ASK))
    assert [answer.overall_code for answer in got] == [OK, OK, OK, OVER_LIMIT]
    peek = app.requests._gate.store_for("store")._maps.values()  # the counts of the window
    assert [state.count for one in peek for state in one.current.values()] == [200]


def test_asking_and_taking_in_one_call_takes_nothing_if_either_is_refused() -> None:
    rules = [
        {"name": "calls", "path": "/calls", "limits": "2/hour"},
        {"name": "tokens", "path": "/tokens", "limits": "1/hour"},
    ]
    app = made(limits=[], rules=rules)
    calls, tokens = [("path", "/calls")], [("path", "/tokens")]

    def both() -> bytes:
        mixed = MESSAGES["RateLimitRequest"].FromString(request(calls, tokens))
        mixed.descriptors[1].hits_addend.value = 0
        sent: bytes = mixed.SerializeToString()
        return sent

    got = answers(app, both(), request(tokens), both(), request(calls), request(calls))
    assert [answer.overall_code for answer in got] == [OK, OK, OVER_LIMIT, OK, OVER_LIMIT]
