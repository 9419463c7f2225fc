"""A client that opens a stream and lets nothing of the answer through, which gRPC's own can't be.

HTTP/2 by hand: its flow control window is 0 from the start, so that not one byte may be sent to it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
EMPTY_MESSAGE = b"\0" + struct.pack(">I", 0)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """Not indexed, not compressed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


@asynccontextmanager
async def unread(port: int, path: bytes) -> AsyncIterator[None]:
    """One call of `path` with an empty request stays open, and nothing of it is read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    writer.write(PREFACE)
    writer.write(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)))
    writer.write(frame(SETTINGS, ACK, 0, b""))
    writer.write(frame(HEADERS, END_HEADERS, 1, b"".join(header(*each) for each in headers)))
    writer.write(frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
    await writer.drain()
    try:
        yield
    finally:
        writer.close()
