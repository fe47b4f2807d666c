"""Makes the messages of Envoy's rate limit service at run time, from their field numbers.

They have a pool of their own, so that they do not clash with generated modules of the same names. Fields that the
service does not use are left out, because protobuf skips unknown fields.
"""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "envoy.service.ratelimit.v3.RateLimitService"
_PACKAGE: Final = "envoy.service.ratelimit.v3"

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}

# (name, number, type). A type in brackets is repeated. Other names are messages of this table. Enums are sent as int32.
# Texts that clients choose are read as bytes: otherwise a text that is not UTF-8 would make the call fail, and Envoy
# would admit the request.
_MESSAGES: Final[dict[str, Sequence[tuple[str, int, str]]]] = {
    "Entry": [("key", 1, "bytes"), ("value", 2, "bytes")],
    "UInt64Value": [("value", 1, "uint64")],
    "Descriptor": [("entries", 1, "[Entry]"), ("hits_addend", 3, "UInt64Value")],
    "RateLimitRequest": [("domain", 1, "string"), ("descriptors", 2, "[Descriptor]"), ("hits_addend", 3, "uint32")],
    "Duration": [("seconds", 1, "int64"), ("nanos", 2, "int32")],
    "RateLimit": [("requests_per_unit", 1, "uint32"), ("unit", 2, "int32"), ("name", 3, "string")],
    "DescriptorStatus": [
        ("code", 1, "int32"),
        ("current_limit", 2, "RateLimit"),
        ("limit_remaining", 3, "uint32"),
        ("duration_until_reset", 4, "Duration"),
    ],
    "HeaderValue": [("key", 1, "string"), ("value", 2, "string")],
    "RateLimitResponse": [
        ("overall_code", 1, "int32"),
        ("statuses", 2, "[DescriptorStatus]"),
        ("response_headers_to_add", 3, "[HeaderValue]"),
        ("raw_body", 5, "bytes"),
    ],
}
OK, OVER_LIMIT = 1, 2  # values of `code` and `overall_code`
UNITS: Final = {  # by seconds of the window; those of calendar periods are the longest
    1: 1,
    60: 2,
    3600: 3,
    **dict.fromkeys((86_400, 90_000), 4),
    **dict.fromkeys((604_800, 608_400), 7),
    **dict.fromkeys((2_592_000, 2_678_400, 2_682_000), 5),
    **dict.fromkeys((31_536_000, 31_622_400, 31_626_000), 6),
}


def _messages() -> dict[str, Any]:
    """Return the classes of all messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="ratelimit_mw/rls.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            bare = kind.strip("[]")
            field = described.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if kind != bare else _Field.LABEL_OPTIONAL
            field.type = _TYPES.get(bare, _Field.TYPE_MESSAGE)
            if bare in _MESSAGES:
                field.type_name = f".{_PACKAGE}.{bare}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES: Final = _messages()
