"""gRPC reflection that also finds methods, under both of its names.

grpcio-reflection finds files by messages and services, but not by methods: load generators that ask
for "package.Service.Method" (ghz does) get "Symbol not found". Later clients ask v1 first,
whose messages are v1alpha's, byte for byte. Knows descriptors; does not know services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1 = "grpc.reflection.v1.ServerReflection"


class MethodPool:
    """The descriptors of this process, where a method is in its service's file."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        """Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return (
                self._pool.FindServiceByName(service)
                .methods_by_name[method]
                .containing_service.file
            )

    def __getattr__(self, name: str) -> Any:  # all else is the pool's own
        return getattr(self._pool, name)


def add_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Describe `services` (full names) and reflection itself."""
    names = (*services, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names, pool=MethodPool())
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    info = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    v1 = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": info})
    server.add_generic_rpc_handlers((v1,))
