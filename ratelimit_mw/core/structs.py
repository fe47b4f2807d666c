"""What msgspec's structs do not say in a single call."""

from typing import Any

from msgspec import Struct


def defaults_of(struct: type[Struct]) -> dict[str, Any]:
    """Return the defaults of the fields that have one; `msgspec.structs.fields` would read their types, too."""
    return dict(zip(struct.__struct_fields__[::-1], struct.__struct_defaults__[::-1], strict=False))
