"""Errors on the wire: google.rpc.Status in the trailing metadata, as any gRPC client reads it.

ErrorInfo carries the reason and further facts, BadRequest the field at fault, RetryInfo how long to
wait (https://google.aip.dev/193). A status without an ErrorInfo of our domain was made by the
transport, or by something between. Knows this encoding and its size limits; does not know who
raises what.

The status message travels percent-encoded and the details in base64, in metadata that may have
8 KiB in all. So every text is cut by its encoded bytes, not by its characters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from common.errors import CrossdraftError

DOMAIN = "crossdraft"
UNEXPECTED = "UNEXPECTED"  # the reason of our own mistakes
# In UTF-8. Percent-encoding makes up to three bytes of one, and base64 four of three.
MESSAGE_BYTES = 800  # of a status message, which is in the details once more
VALUE_BYTES = 200  # of any other text in the details
FACT_BYTES = 64  # of a key or a value of ErrorInfo.metadata
MAX_FACTS = 8

_ELLIPSIS = "…"
_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class ErrorDetails:
    """What machines may know of an error."""

    reason: str
    field: str = ""  # of the request
    retry_ms: int | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


def shortened(text: str, limit: int) -> str:
    """`text`, or as much of its beginning as fits `limit` bytes of UTF-8 with an ellipsis."""
    data = text.encode(errors="replace")  # lone surrogates can't travel
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def without_middle(text: str, limit: int) -> str:
    """`text`, or as much of its beginning and its end as fits `limit` bytes with an ellipsis.

    A message quotes a client's text in its middle: the field is before it, and the limit behind.
    """
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    end = limit // 3
    begin = limit - end - len(_ELLIPSIS.encode())
    parts = (data[:begin].decode(errors="ignore"), data[-end:].decode(errors="ignore"))
    return _ELLIPSIS.join(parts)


def message_of(error: CrossdraftError) -> str:
    """The status message, within its size limit."""
    return without_middle(str(error), MESSAGE_BYTES)


def encoded(status: grpc.StatusCode, message: str, details: ErrorDetails) -> tuple[str, bytes]:
    """The trailing metadata's entry. message: the status message, exactly."""
    rich = status_pb2.Status(code=status.value[0], message=message)
    facts = list(details.metadata.items())[:MAX_FACTS]
    info = error_details_pb2.ErrorInfo(
        reason=shortened(details.reason, VALUE_BYTES),
        domain=DOMAIN,
        metadata={shortened(key, FACT_BYTES): shortened(value, FACT_BYTES) for key, value in facts},
    )
    rich.details.add().Pack(info)
    if details.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=shortened(details.field, VALUE_BYTES),
            description=without_middle(message, VALUE_BYTES),
        )
        rich.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if details.retry_ms is not None:
        seconds, ms = divmod(details.retry_ms, 1000)
        delay = Duration(seconds=seconds, nanos=ms * 1_000_000)
        rich.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    (entry,) = rpc_status.to_status(rich).trailing_metadata
    return entry


def details_of(error: CrossdraftError) -> ErrorDetails:
    return ErrorDetails(error.reason, error.field, error.retry_ms, error.metadata)


def received(metadata: Iterable[tuple[str, Any]] | None) -> ErrorDetails | None:
    """From a call's trailing metadata. None: the status isn't one of ours."""
    data = dict(metadata or ()).get(_KEY)
    if not isinstance(data, bytes):
        return None
    try:
        rich = status_pb2.Status.FromString(data)
    except DecodeError:
        return None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    retry_ms: int | None = None
    for each in rich.details:
        each.Unpack(info)
        each.Unpack(bad)
        if each.Unpack(retry):
            delay = retry.retry_delay
            retry_ms = delay.seconds * 1000 + delay.nanos // 1_000_000
    if info.domain != DOMAIN:
        return None
    name = bad.field_violations[0].field if bad.field_violations else ""
    return ErrorDetails(info.reason, name, retry_ms, dict(info.metadata))
