"""A service with an engine behind it, from start to the end of its process.

Knows which settings of a configuration the shell takes, that a dead engine ends the service, and
the order of starting and stopping. Does not know which service and which engine.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from typing import Any, Protocol

from opentelemetry.trace import Tracer

from common.engine.telemetry import EngineTelemetry
from common.rpc.calls import CallTelemetry
from common.rpc.server import Drain, GrpcServer, ServerSettings, Service
from common.telemetry.listener import listening
from common.telemetry.tracing import NO_TRACER

# Calls that one address may have in progress, for each session that there may be: enough to see in
# a refusal that the service is full, rather than that the caller is greedy.
PEER_STREAMS = 4


class Engine(Protocol):
    """What the shell needs of either engine."""

    @property
    def start(self) -> Callable[[], None]: ...
    @property
    def stop(self) -> Callable[[], None]: ...
    @property
    def busy_s(self) -> Callable[[], float]: ...
    @property
    def on_death(self) -> Callable[[Callable[[], object]], None]: ...
    @property
    def telemetry(self) -> EngineTelemetry: ...


def settings_of(config: Any) -> ServerSettings:
    """The shell's part of a service's configuration: the fields that both have."""
    names = [field.name for field in fields(ServerSettings) if hasattr(config, field.name)]
    settings = ServerSettings(**{name: getattr(config, name) for name in names})
    if settings.max_streams_per_peer is None:
        return replace(settings, max_streams_per_peer=PEER_STREAMS * config.max_sessions)
    return settings


async def serve_engine(
    config: Any,
    service: Service,
    engine: Engine,
    drain: Drain,
    first_pass: Callable[[], Coroutine[Any, Any, None]],
    on_ready: Callable[[int], None] | None,
    tracer: Tracer = NO_TRACER,
) -> None:
    """Serve until a signal, then `drain`. `on_ready` gets the bound port. Raises EngineDied.

    `first_pass` is a real forward pass through the engine. It comes before the port is bound: what
    is made on first use (kernels, packed weights) belongs to starting, and ready means that a pass
    has been seen to work.
    """
    registry = engine.telemetry.registry
    server = GrpcServer(settings_of(config), [service], [CallTelemetry(registry, tracer)])
    loop = asyncio.get_running_loop()
    # What was loaded stays. Python's collector needn't walk through it again and again, with the
    # event loop and the engine waiting for a tenth of a second each time.
    gc.collect()
    gc.freeze()
    engine.on_death(lambda: loop.call_soon_threadsafe(server.die))
    with listening(config.metrics_listen, registry):
        engine.start()
        watching = None
        try:
            await server.unless_dead(first_pass())
            port = await server.start()
            watching = asyncio.create_task(server.health.watch(engine.busy_s, config.stall_s))
            await server.set_serving(True)
            if on_ready is not None:
                on_ready(port)
            await server.run_until_signal(drain)
        finally:
            if watching is not None:
                watching.cancel()
            engine.stop()
