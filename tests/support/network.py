"""A network between two services that delays, stalls and cuts, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 1 << 16


class Network:
    """A TCP proxy to one port. Bytes are late or never come; none is lost between others."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay_s = 0.0
        self.connections = 0
        self.port = 0

    def stall(self) -> None:
        """Nothing goes through from now on; connections stay open."""
        self._open.clear()

    def release(self) -> None:
        """What has waited arrives now, late."""
        self._open.set()

    def cut(self) -> None:
        """Every connection breaks, and what was on its way is gone."""
        for writer in self._writers:
            writer.transport.abort()
        self._open.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        ways = [
            asyncio.create_task(self._carry(reader, back)),
            asyncio.create_task(self._carry(there, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for each in (writer, back):
                each.transport.abort()
            self._writers -= {writer, back}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def network_to(port: int) -> AsyncIterator[Network]:
    network = Network(port)
    server = await asyncio.start_server(network.connected, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        server.close()
        network.cut()
