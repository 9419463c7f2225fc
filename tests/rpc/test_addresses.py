"""Addresses: what stays on this machine goes past a proxy, however it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.exporter.otlp.proto.grpc import exporter

from common.addresses import check_target, is_loopback, listen_address
from common.errors import ConfigError
from common.rpc.channel import open_channel
from common.rpc.health import Health
from common.telemetry import tracing
from tests.cli.command_line import one_line, run

LOOPBACK = (
    *("127.0.0.1:{}", "127.9.8.7:{}", "localhost:{}", "LOCALHOST:{}", "a.localhost:{}"),
    *("dns:localhost:{}", "dns:///localhost:{}", "DNS:///LocalHost:{}", "dns:///127.0.0.1:{}"),
    *("ipv4:127.0.0.1:{}", "ipv4:///127.0.0.1:{}", "ipv4:127.0.0.2:{0},127.0.0.1:{0}"),
    *("[::1]:{}", "[0:0:0:0:0:0:0:1]:{}", "[::ffff:127.0.0.1]:{}", "dns:[::1]:{}"),
    *("ipv6:[::1]:{}", "ipv6:%5B::1%5D:{}", "dns:///%5B::1%5D:{}", "0.0.0.0:{}", "[::]:{}"),
)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that nobody can reach, for every call that asks for one."""
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


async def is_reached(target: str) -> bool:
    async with open_channel(target, 2**20) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        except grpc.aio.AioRpcError as error:
            if "127.0.0.1:9" in (error.details() or ""):
                return False
            raise
    return True


async def test_loopback_goes_past_a_proxy_in_every_notation(proxy: None, tmp_path: Path) -> None:
    server = grpc.aio.server()
    Health([]).add_to(server)
    port = server.add_insecure_port("[::]:0")
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        targets = [written.format(port) for written in LOOPBACK]
        targets += [f"unix:{tmp_path}/s", f"unix://{tmp_path}/s"]
        assert [target for target in targets if not await is_reached(target)] == []
        assert not await is_reached(f"192.0.2.1:{port}")  # it is asked of the proxy
    finally:
        await server.stop(None)


@pytest.mark.parametrize("target", ["unix-abstract:x", "vsock:1:2", "localhost.:1", "localhost"])
def test_what_stays_on_this_machine_is_seen(target: str) -> None:
    assert is_loopback(target)


@pytest.mark.parametrize(
    "target",
    [
        *("dns:///verifier:1", "verifier:50051", "127.example.com:1", "localhost.example.com:1"),
        *("ipv4:10.0.0.1:1,10.0.0.2:1", "[fd00::1]:1", "ipv6:[2001:db8::1]:1", "dns:unix:1"),
    ],
)
def test_what_leaves_this_machine_is_no_loopback(target: str) -> None:
    assert not is_loopback(target)


@pytest.mark.parametrize(
    ("endpoint", "direct"), [("http://LOCALHOST:1", True), ("http://collector.example:1", False)]
)
def test_a_collector_on_this_machine_is_reached_past_a_proxy(
    endpoint: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Any]()
    channel = grpc.insecure_channel

    def opened(target: str, compression: Any, options: Any) -> grpc.Channel:
        given.extend(options)
        return channel(target, options, compression)

    monkeypatch.setattr(exporter, "insecure_channel", opened)
    with tracing.exporting("drafter", endpoint, 1.0):
        assert (("grpc.enable_http_proxy", 0) in given) is direct


@pytest.mark.parametrize("target", ["", "dns:///", ":5", "ipv4:", "unix:"])
def test_a_target_without_a_host_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="it must be host:port, or a gRPC target"):
        check_target(target)


@pytest.mark.parametrize("target", ["localhost:65536", "h:-1", "ipv4:10.0.0.1:1,10.0.0.1:70000"])
def test_a_port_that_none_can_have_is_refused(target: str) -> None:
    """gRPC would call another one."""
    with pytest.raises(ConfigError, match=r"with port .*; it must be from 0 to 65535"):
        check_target(target)
    line = one_line(run("generate", "x", "--address", target), 2)
    assert "it must be from 0 to 65535" in line


@pytest.mark.parametrize("target", ["::1", "[::1]", "h", "h:65535", "unix:/a:99999", "dns:h:http"])
def test_targets_that_grpc_reads_pass(target: str) -> None:
    check_target(target)


def test_addresses_to_listen_on_are_host_and_port() -> None:
    assert listen_address("listen", "[::1]:0") == ("::1", 0)
    assert listen_address("listen", "0.0.0.0:65535") == ("0.0.0.0", 65535)
    for address in ("", "h", "h:", ":1", "h:65536", "h:-1", "h:http", "h:١"):
        with pytest.raises(ConfigError, match=r"listen is .*; it must be host:port, with a port"):
            listen_address("listen", address)
