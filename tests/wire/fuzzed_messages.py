"""Messages of any type, filled with what is plausible, extreme, or neither; and raw bytes."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_EXTREMES = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2, 7, 119, 120, 399, 400, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, 0.5, 1.0, -1.0, 1e-9, 1e300, float("inf"), float("nan")),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, 0.5, 1.0, -1.0, 1e30, float("inf"), float("nan")),
}
_UNKNOWN = b"\xf8\x07\x01"  # field 127, varint 1


def _values(field: FieldDescriptor, strings: tuple[str, ...]) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type, strings)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.integers(0, 6)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = st.text(st.characters(codec="utf-8"), max_size=12)
        return st.sampled_from(strings) | text
    extremes = st.sampled_from(_EXTREMES[kind])
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return st.integers(0, 20) | extremes
    return st.floats(0, 1, width=32) | extremes


@st.composite
def messages(sample: st.DrawFn, kind: Descriptor, strings: tuple[str, ...]) -> Any:
    """strings: some that mean something (a fingerprint, a role)."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if not sample(st.booleans()):
            continue
        values = _values(field, strings)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys = _values(field.message_type.fields_by_name["key"], strings)
            value = _values(field.message_type.fields_by_name["value"], strings)
            getattr(message, field.name).update(sample(st.dictionaries(keys, value, max_size=3)))
        elif field.is_repeated:
            getattr(message, field.name).extend(sample(st.lists(values, max_size=5)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(sample(values))
        else:
            setattr(message, field.name, sample(values))
    if sample(st.integers(0, 19)) == 0:
        message.MergeFromString(_UNKNOWN)
    return message


@st.composite
def spoilt(sample: st.DrawFn, sound: st.SearchStrategy[Any]) -> bytes:
    """Bytes of a message, some of them changed, cut or added."""
    data = bytearray(sample(sound).SerializeToString())
    for _ in range(sample(st.integers(1, 4))):
        at = sample(st.integers(0, len(data)))
        data[at : at + sample(st.integers(0, 3))] = sample(st.binary(max_size=3))
    return bytes(data)


def raw(sound: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return spoilt(sound) | st.binary(max_size=60)
