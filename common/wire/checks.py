"""What both seams check of a protobuf message, whatever it says.

Knows: unknown fields, enum values, token ids out of range and too many stop ids. Refuses to know:
which fields there are (common/wire/verify.py, common/wire/generate.py), sessions, models and their
limits; the caller hands the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.unknown_fields import UnknownFieldSet

from common.errors import InvalidField, MissingMessage

MAX_STOP_IDS = 1024

E = TypeVar("E", bound=Enum)


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuse the first id outside [0, vocab_size), naming its index."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidField(f"{field}[{index}]", token_id, f"in [0, {vocab_size})")


def check_stop_count(field: str, count: int) -> None:
    """Refuse more stop ids than a session may have."""
    if count > MAX_STOP_IDS:
        raise InvalidField(field, f"{count} ids long", f"at most {MAX_STOP_IDS}")


def refuse_unknown_fields(name: str, message: Any) -> None:
    """A field of a newer version may change what the message means, so it isn't ignored."""
    numbers = sorted({field.field_number for field in UnknownFieldSet(message)})
    if numbers:
        listed = ", ".join(str(number) for number in numbers)
        raise MissingMessage(f"{name} carries field {listed}, which this version doesn't know")


def enum_from_pb(field: str, value: int, known: Mapping[E, Any], unspecified: bool) -> E | None:
    """`unspecified`: 0 is None, since leaving it out means something; otherwise it is refused."""
    for member, number in known.items():
        if number == value:
            return member
    if value == 0 and unspecified:
        return None
    numbers = ", ".join(f"{number} ({member.value})" for member, number in known.items())
    raise InvalidField(field, value, f"one of {numbers}")
