"""A name server for tests: one name, the addresses that a test gives it, over UDP on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

A, IN, NO_ERROR_ANSWER = 1, 1, 0x8580


class TinyDns(asyncio.DatagramProtocol):
    """Answers every A query with `addresses`, and any other with nothing."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self.asked = 0
        self.port = 0
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        end = 12
        while data[end]:
            end += 1 + data[end]
        sampler_input = data[12 : end + 5]
        (kind,) = struct.unpack("!H", sampler_input[-4:-2])
        addresses = self.addresses if kind == A else []
        self.asked += kind == A
        header = data[:2] + struct.pack("!HHHHH", NO_ERROR_ANSWER, 1, len(addresses), 0, 0)
        answers = b"".join(
            struct.pack("!HHHIH", 0xC00C, A, IN, 0, 4) + socket.inet_aton(address)
            for address in addresses
        )
        self._transport.sendto(header + sampler_input + answers, source)

    def target(self, name: str, port: int) -> str:
        """The target for gRPC, so that it asks here for `name`."""
        return f"dns://127.0.0.1:{self.port}/{name}:{port}"


@asynccontextmanager
async def answering_dns(addresses: Sequence[str]) -> AsyncIterator[TinyDns]:
    loop = asyncio.get_running_loop()
    transport, dns = await loop.create_datagram_endpoint(
        lambda: TinyDns(addresses), local_addr=("127.0.0.1", 0)
    )
    try:
        yield dns
    finally:
        transport.close()
