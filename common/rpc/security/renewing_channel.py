"""A channel whose new calls go over the newest certificates.

Knows gRPC's client can't change the certificates of a channel, so that a new one is opened when
the files have changed; calls in progress stay on theirs, and it is closed after the last of them.
Does not know files (common/rpc/security/tls.py) and options (common/rpc/channel.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from common.rpc.security.tls import Pems, WatchedTls

RETIRED_S = 24 * 3600.0  # how long calls may stay on old certificates

Open = Callable[[Pems], grpc.aio.Channel]


class RenewingChannel(grpc.aio.Channel):
    """Used as any channel is; stubs made of it needn't be made again."""

    def __init__(self, open_: Open, tls: WatchedTls) -> None:
        self._open = open_
        self._tls = tls
        self._channel = open_(tls.current)
        self._retired: set[asyncio.Task[None]] = set()

    def _newest(self) -> grpc.aio.Channel:
        pems = self._tls.renewed()
        if pems is not None:
            closing = asyncio.create_task(self._channel.close(RETIRED_S))
            self._retired.add(closing)
            closing.add_done_callback(self._retired.discard)
            self._channel = self._open(pems)
        return self._channel

    def _method(self, kind: str, *arguments: Any, **keywords: Any) -> Any:
        def call(*sent: Any, **options: Any) -> Any:
            return getattr(self._newest(), kind)(*arguments, **keywords)(*sent, **options)

        return call

    def unary_unary(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("unary_unary", *arguments, **keywords)

    def unary_stream(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("unary_stream", *arguments, **keywords)

    def stream_unary(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("stream_unary", *arguments, **keywords)

    def stream_stream(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("stream_stream", *arguments, **keywords)

    async def close(self, grace: float | None = None) -> None:
        for closing in self._retired:
            closing.cancel()
        if self._retired:
            await asyncio.wait(self._retired)
        await self._channel.close(grace)

    async def __aenter__(self) -> RenewingChannel:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._newest().channel_ready()
