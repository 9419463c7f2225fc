"""Reflection as load generators and debuggers use it: by service, by method, under either name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from common.pb import verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.rpc.server import GrpcServer, ServerSettings, Service

LIMIT = 1 << 20
SERVICE = "crossdraft.v1.VerifierService"
NAMES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    settings = ServerSettings("127.0.0.1:0", LIMIT, 0, reflection=True)
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    servicer = verifier_pb2_grpc.VerifierServiceServicer()
    server = GrpcServer(settings, [Service(SERVICE, register, servicer)])
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}", LIMIT) as opened:
        yield opened
    await server.stop()


async def ask(channel: grpc.aio.Channel, name: str, **what: str) -> Any:
    method = channel.stream_stream(
        f"/{name}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = method(iter([reflection_pb2.ServerReflectionRequest(**what)]))
    return await call.read()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("symbol", [f"{SERVICE}.Verify", f"{SERVICE}.VerifyOnce", SERVICE])
async def test_a_service_and_its_methods_are_found(
    channel: grpc.aio.Channel, name: str, symbol: str
) -> None:
    answer = await ask(channel, name, file_containing_symbol=symbol)
    described = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    methods = {
        f"{file.package}.{service.name}.{method.name}"
        for file in described
        for service in file.service
        for method in service.method
    }
    assert f"{SERVICE}.Verify" in methods
    # All that the files import is there, so that a client needs no second question.
    assert {name for file in described for name in file.dependency} <= {f.name for f in described}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("symbol", [f"{SERVICE}.Nothing", "crossdraft.v1.Nothing.Verify", "Verify"])
async def test_what_is_not_there_is_not_found(
    channel: grpc.aio.Channel, name: str, symbol: str
) -> None:
    answer = await ask(channel, name, file_containing_symbol=symbol)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("name", NAMES)
async def test_services_are_listed(channel: grpc.aio.Channel, name: str) -> None:
    answer = await ask(channel, name, list_services="")
    listed = {each.name for each in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= listed
