"""TLS and mTLS of the shell and of a channel: who gets in, and certificates that change."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.errors import ConfigError
from common.rpc.channel import ClientTls, open_channel
from common.rpc.security.tls import TlsFiles, WatchedTls
from common.rpc.server import GrpcServer, ServerSettings, Service
from tests.rpc.test_server import LIMIT, NAME, SETTINGS, Fake, call
from tests.support.certificates import Authority, replace


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


@asynccontextmanager
async def serving(settings: ServerSettings) -> AsyncIterator[str]:
    server = GrpcServer(settings, [Service(NAME, Fake().register, Fake())])
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


def over_tls(authority: Authority, client_ca: str | None = None) -> ServerSettings:
    certificate, key = authority.pair("server")
    return changed(SETTINGS, tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca)


async def echo(address: str, tls: ClientTls | None) -> str:
    """ "served", or the status that came instead."""
    async with open_channel(address, LIMIT, tls) as channel:
        try:
            assert await call(channel, "unary_unary", b"echo") == [b"echo"]
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "served"


async def test_over_tls_only_a_client_that_trusts_the_server_is_served(
    ours: Authority, theirs: Authority
) -> None:
    async with serving(over_tls(ours)) as address:
        assert await echo(address, ClientTls(ours.ca)) == "served"
        assert await echo(address, ClientTls(theirs.ca)) == "UNAVAILABLE"
        assert await echo(address, ClientTls(ours.ca, name="another.example")) == "UNAVAILABLE"
        assert await echo(address, ClientTls(ours.ca, name="localhost")) == "served"
        assert await echo(address, None) == "UNAVAILABLE"


async def test_over_mtls_only_a_client_with_a_known_certificate_is_served(
    ours: Authority, theirs: Authority
) -> None:
    async with serving(over_tls(ours, client_ca=theirs.ca)) as address:
        assert await echo(address, ClientTls(ours.ca)) == "UNAVAILABLE"
        known, unknown = theirs.pair("client"), ours.pair("client")
        assert await echo(address, ClientTls(ours.ca, *known)) == "served"
        assert await echo(address, ClientTls(ours.ca, *unknown)) == "UNAVAILABLE"


async def test_rotation_in_mid_service_reaches_new_calls_and_leaves_old_streams_alone(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """The server's certificate, the client's and both authorities change under one channel."""
    server, client = tmp_path / "server", tmp_path / "client"
    files = [Path(f"{name}.{kind}") for name in (server, client) for kind in ("pem", "key", "ca")]

    def rotate(authority: Authority) -> None:
        for certificate, key, ca in (files[:3], files[3:]):
            authority.issue(certificate, key)
            replace(ca, Path(authority.ca).read_bytes())

    rotate(ours)
    settings = changed(
        SETTINGS,
        tls_certificate=str(files[0]),
        tls_key=str(files[1]),
        tls_client_ca=str(files[2]),
    )
    tls = ClientTls(str(files[5]), str(files[3]), str(files[4]))
    async with serving(settings) as address, open_channel(address, LIMIT, tls) as channel:
        method = channel.stream_stream(f"/{NAME}/stream_stream")
        old = method()
        await old.write(b"before")
        assert await old.read() == b"before"
        rotate(theirs)
        new = method()
        await new.write(b"over new certificates")
        assert await new.read() == b"over new certificates"
        await old.write(b"still there")
        assert await old.read() == b"still there"
        assert await echo(address, tls) == "served"
        assert await echo(address, ClientTls(ours.ca, *ours.pair("old"))) == "UNAVAILABLE"
        for stream in (old, new):
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF


def watch(authority: Authority, name: str) -> tuple[WatchedTls, Path, Path]:
    certificate, key = map(Path, authority.pair(name))
    return WatchedTls(TlsFiles(str(certificate), str(key), authority.ca)), certificate, key


def test_files_that_are_half_rotated_wait_for_the_other_half(
    ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched, certificate, key = watch(ours, "watched")
    first = watched.current
    assert watched.renewed() is None
    new_certificate, new_key = map(Path, ours.pair("next"))
    replace(certificate, new_certificate.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert watched.renewed() is None
        assert watched.renewed() is None
    assert caplog.text.count("certificates stay as they were") == 1
    assert watched.current is first
    replace(key, new_key.read_bytes())
    renewed = watched.renewed()
    assert renewed is not None and renewed.key == new_key.read_bytes()
    assert watched.renewed() is None
    certificate.unlink()
    assert watched.renewed() is None and watched.current is renewed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda certificate, key: key.write_bytes(b"no key"), "aren't a certificate and its key"),
        (lambda certificate, key: certificate.unlink(), "can't read .*server.pem"),
        (
            lambda certificate, key: certificate.write_bytes(key.read_bytes()),
            "aren't a certificate and its key",
        ),
    ],
)
async def test_files_that_do_not_fit_are_a_config_error_at_start(
    ours: Authority, spoil: Any, message: str
) -> None:
    settings = over_tls(ours)
    assert settings.tls_certificate and settings.tls_key
    spoil(Path(settings.tls_certificate), Path(settings.tls_key))
    with pytest.raises(ConfigError, match=message):
        await GrpcServer(settings, []).start()


async def test_an_authority_without_certificates_is_a_config_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"empty\.pem holds no certificates"):
        open_channel("127.0.0.1:1", LIMIT, ClientTls(str(empty)))
