"""A name with several addresses: calls go round those that are healthy, and newcomers are found."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from common.rpc.channel import open_channel
from common.rpc.server import GrpcServer, ServerSettings, Service
from tests.rpc.test_server import LIMIT, NAME, Fake
from tests.rpc.tiny_dns import TinyDns, answering_dns

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
LONG_S = 30.0


class Named(Fake):
    """Answers with its address."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host

    async def unary_unary(self, request: bytes, context: object) -> bytes:
        return self.host.encode()


@asynccontextmanager
async def replica(
    host: str, port: int, serving: bool = True, age_s: float | None = None
) -> AsyncIterator[GrpcServer]:
    settings = ServerSettings(f"{host}:{port}", LIMIT, 1.0, max_connection_age_s=age_s)
    server = GrpcServer(settings, [Service(NAME, Named(host).register, None)])
    await server.start()
    await server.set_serving(serving)
    try:
        yield server
    finally:
        await server.stop()


def port_free_on_all() -> int:
    """A port that was free a moment ago on each of HOSTS."""
    with socket.socket() as found:
        found.bind(("0.0.0.0", 0))
        return int(found.getsockname()[1])


def channel_to(dns: TinyDns, port: int) -> grpc.aio.Channel:
    return open_channel(dns.target("replicas", port), LIMIT, service=NAME)


async def who(channel: grpc.aio.Channel) -> str:
    answer = await channel.unary_unary(f"/{NAME}/unary_unary")(b"", wait_for_ready=True)
    assert isinstance(answer, bytes)
    return answer.decode()


async def until_answers(channel: grpc.aio.Channel, hosts: set[str]) -> Counter[str]:
    """Ask until all of them have answered; who answered how often."""
    seen: Counter[str] = Counter()
    while not hosts <= set(seen):
        seen[await who(channel)] += 1
    return seen


async def test_calls_go_round_all_addresses_of_a_name() -> None:
    port = port_free_on_all()
    async with AsyncExitStack() as stack:
        for host in HOSTS:
            await stack.enter_async_context(replica(host, port))
        dns = await stack.enter_async_context(answering_dns(HOSTS))
        channel = await stack.enter_async_context(channel_to(dns, port))
        await asyncio.wait_for(until_answers(channel, set(HOSTS)), LONG_S)
        assert Counter([await who(channel) for _ in range(30)]) == dict.fromkeys(HOSTS, 10)


async def test_a_server_that_is_not_healthy_gets_no_calls() -> None:
    port = port_free_on_all()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(HOSTS[0], port))
        second = await stack.enter_async_context(replica(HOSTS[1], port, serving=False))
        dns = await stack.enter_async_context(answering_dns(HOSTS[:2]))
        channel = await stack.enter_async_context(channel_to(dns, port))
        assert {await who(channel) for _ in range(10)} == {HOSTS[0]}
        await second.set_serving(True)
        await asyncio.wait_for(until_answers(channel, {HOSTS[1]}), LONG_S)
        await first.set_serving(False)  # it drains, or its engine hangs
        seen = [await who(channel) for _ in range(4)]
        while set(seen[-4:]) != {HOSTS[1]}:
            seen.append(await asyncio.wait_for(who(channel), LONG_S))
        assert {await who(channel) for _ in range(10)} == {HOSTS[1]}


async def test_a_newcomer_is_found_when_connections_come_of_age_and_streams_stay() -> None:
    port = port_free_on_all()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(replica(HOSTS[0], port, age_s=1.0))
        dns = await stack.enter_async_context(answering_dns(HOSTS[:1]))
        channel = await stack.enter_async_context(channel_to(dns, port))
        stream = channel.stream_stream(f"/{NAME}/stream_stream")()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        await stack.enter_async_context(replica(HOSTS[1], port))
        dns.addresses = list(HOSTS[:2])
        await asyncio.wait_for(until_answers(channel, {HOSTS[1]}), LONG_S)
        assert dns.asked > 1
        await stream.write(b"after")
        assert await stream.read() == b"after"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_a_replacement_at_a_new_address_is_found_when_the_old_one_is_gone() -> None:
    port = port_free_on_all()
    async with answering_dns(HOSTS[:1]) as dns, channel_to(dns, port) as channel:
        async with replica(HOSTS[0], port):
            assert await who(channel) == HOSTS[0]
        dns.addresses = [HOSTS[2]]
        async with replica(HOSTS[2], port):
            assert await asyncio.wait_for(who(channel), LONG_S) == HOSTS[2]
