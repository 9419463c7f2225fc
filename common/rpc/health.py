"""What health says, under which names, and where.

""            and each service's full name: calls are welcome. What channels and load balancers ask.
readiness     the same, under the name that a probe asks for.
liveness      the engine's step in progress returns in time; a process that says no won't recover.

Knows names, and that an engine whose step hangs is neither alive nor ready. A process whose event
loop hangs answers nobody, which says it too. Does not know what a step does, when calls are
welcome (common/engine/server.py), and how it is answered (common/rpc/health_servicer.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from common.addresses import listen_address
from common.errors import ConfigError
from common.rpc.channel import server_options
from common.rpc.health_servicer import HealthServicer, Status

log = logging.getLogger(__name__)

LIVENESS = "liveness"
READINESS = "readiness"
LOOK_EVERY_S = 1.0  # how old an answer may be
MESSAGE_BYTES = 64 * 1024  # of a port that answers health alone; its messages are names


class Health:
    """Answers of one process, on any number of servers."""

    def __init__(self, services: Sequence[str]) -> None:
        """services: full names. Alive and not serving, to begin with."""
        self._servicer = HealthServicer()
        self._ready_names = ("", READINESS, *services)
        self._serving = False
        self._alive = True
        self._own_server: grpc.aio.Server | None = None
        self._tell()

    def add_to(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def open(
        self, listen: str, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> int:
        """Answer on a port of its own, without TLS, for probes that know none. Returns the port.

        Raises ConfigError.
        """
        listen_address("health_listen", listen)
        server = grpc.aio.server(interceptors=interceptors, options=server_options(MESSAGE_BYTES))
        self.add_to(server)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as cause:
            raise ConfigError(
                f"health_listen is {listen!r}; it must be an address of this machine whose port is "
                "free"
            ) from cause
        await server.start()
        self._own_server = server
        return int(port)

    async def close(self) -> None:
        if self._own_server is not None:
            await self._own_server.stop(None)
            self._own_server = None

    def set_serving(self, serving: bool) -> None:
        """Whether calls are welcome."""
        self._serving = serving
        self._tell()

    async def watch(
        self, busy_s: Callable[[], float], stall_s: float, every_s: float = LOOK_EVERY_S
    ) -> None:
        """Until cancelled: neither alive nor ready while a step has taken more than `stall_s`."""
        while True:
            alive = busy_s() <= stall_s
            if alive != self._alive:
                self._alive = alive
                if alive:
                    log.warning("the step that had hung has returned")
                else:
                    log.critical("a step of the engine hasn't returned for %.0f s", busy_s())
                self._tell()
            await asyncio.sleep(every_s)

    def _tell(self) -> None:
        ready = _status(self._alive and self._serving)
        self._servicer.publish(
            {LIVENESS: _status(self._alive), **dict.fromkeys(self._ready_names, ready)}
        )


def _status(good: bool) -> Status:
    return HealthCheckResponse.SERVING if good else HealthCheckResponse.NOT_SERVING
