"""grpc.health.v1 as a service: Check, List and Watch, none of which waits for another's client.

grpcio-health-checking's own Watch holds a lock while it writes, so that one client that reads
nothing keeps every other watcher from its answer, and the server from saying that it drains. Knows
statuses by name, and who watches them. Does not know what they mean (common/rpc/health.py) and how
many may watch and how long a write may take (common/rpc/guards.py, common/rpc/statuses.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from common.errors import UnknownHealthName

Status = int  # a value of pb.HealthCheckResponse.ServingStatus


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Used on one event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()  # another one after each change

    def publish(self, statuses: Mapping[str, Status]) -> None:
        """What is said from now on, of these names. Waits for nobody."""
        self._statuses.update(statuses)
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            raise UnknownHealthName(request.service, self._statuses)
        return pb.HealthCheckResponse(status=status)

    async def List(
        self, request: pb.HealthListRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthListResponse:
        statuses = self._statuses.items()
        return pb.HealthListResponse(
            statuses={name: pb.HealthCheckResponse(status=status) for name, status in statuses}
        )

    async def Watch(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status now and after each change; one that a slow reader missed isn't made up for."""
        sent: Status | None = None
        while True:
            changed = self._changed  # before the look, so that no change falls between the two
            status = self._statuses.get(request.service, pb.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield pb.HealthCheckResponse(status=status)
            await changed.wait()
