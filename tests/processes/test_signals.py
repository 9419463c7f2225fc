"""A service that is asked to end: ready no more, what runs may finish, and out with status 0."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.channel import open_channel
from tests.rpc.test_server import LIMIT

DRAINING = """
import asyncio
from common.rpc.server import GrpcServer, ServerSettings

async def main():
    server = GrpcServer(ServerSettings("127.0.0.1:0", 65536, 5.0), [])
    port = await server.start()
    await server.set_serving(True)
    async def drain():
        print("draining", flush=True)
    # Reported once signals are caught: that is before the first thing that this waits for.
    asyncio.get_running_loop().call_soon(lambda: print(port, flush=True))
    await server.run_until_signal(drain)
    print("stopped", flush=True)

asyncio.run(main())
"""

PRINT, NEVER = 'print("draining", flush=True)', "asyncio.Event().wait()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_exits_with_0(number: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        DRAINING,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    port = int(await child.stdout.readline())
    async with open_channel(f"127.0.0.1:{port}", LIMIT) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        child.send_signal(number)
        status = (await watch.read()).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        rest = await asyncio.wait_for(child.stdout.read(), 10)
    assert rest.split() == [b"draining", b"stopped"]
    assert await child.wait() == 0


async def test_a_second_signal_ends_a_drain_at_once() -> None:
    never = DRAINING.replace(PRINT, f"{PRINT}; await {NEVER}")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        never.replace("65536, 5.0", "65536, 3600.0"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    await child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    assert await child.stdout.readline() == b"draining\n"
    child.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(child.wait(), 60) == 0
