"""Tokens: who gets in, a file that changes, and that no token is ever shown."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import ConfigError
from common.rpc.channel import open_channel
from common.rpc.error_details import received
from common.rpc.security.bearer_tokens import BearerTokens, one_token
from common.rpc.server import GrpcServer, Service
from tests.rpc.test_server import KINDS, LIMIT, NAME, SETTINGS, Fake
from tests.support.certificates import replace

ONE, TWO = "first-token-0123456789", "second-token-0123456789"
WRONG = "wrong-token-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of one client\n{ONE}\n\n")
    return path


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[grpc.aio.Channel]:
    settings = changed(SETTINGS, bearer_tokens=str(file))
    server = GrpcServer(settings, [Service(NAME, Fake().register, Fake())])
    port = await server.start()
    await server.set_serving(True)
    try:
        async with open_channel(f"127.0.0.1:{port}", LIMIT) as channel:
            yield channel
    finally:
        await server.stop()


async def echo(channel: grpc.aio.Channel, kind: str, *given: str) -> str:
    """ "served", or the status and message that came instead."""

    async def requests() -> AsyncIterator[bytes]:
        yield b"echo"

    metadata = [("authorization", value) for value in given]
    method = getattr(channel, kind)(f"/{NAME}/{kind}")
    called = method(requests() if kind.startswith("stream") else b"echo", metadata=metadata)
    try:
        if kind.endswith("stream"):
            assert [response async for response in called][-1] == b"echo"
        else:
            assert await called == b"echo"
    except grpc.aio.AioRpcError as error:
        details = received(error.trailing_metadata())
        name = details and details.reason
        return f"{name}: {error.code().name}: {error.details()}"
    return "served"


@pytest.mark.parametrize("kind", KINDS)
async def test_only_a_known_token_is_served(
    kind: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = "UNAUTHENTICATED: UNAUTHENTICATED: metadata authorization"
    async with serving(file) as channel:
        assert await echo(channel, kind, f"Bearer {ONE}") == "served"
        assert await echo(channel, kind, f"bearer  {ONE}") == "served"
        assert await echo(channel, kind) == f"{refused} is missing; it must be Bearer TOKEN"
        for given in ([f"Bearer {WRONG}"], ["Bearer "], [f"Bearer {ONE[:-1]}"]):
            reported = await echo(channel, kind, *given)
            assert reported == f"{refused} holds a token that isn't known here"
        for given in ([ONE], [f"Basic {ONE}"], [f"Bearer {ONE}", f"Bearer {WRONG}"]):
            reported = await echo(channel, kind, *given)
            assert reported == f"{refused} isn't of the form Bearer TOKEN"
    assert ONE not in caplog.text and WRONG not in caplog.text


async def test_health_is_answered_without_a_token(file: Path) -> None:
    async with serving(file) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_file_that_changes_is_read_again(file: Path) -> None:
    async with serving(file) as channel:
        replace(file, f"{TWO}\n".encode())
        assert await echo(channel, "unary_unary", f"Bearer {TWO}") == "served"
        assert "isn't known" in await echo(channel, "unary_unary", f"Bearer {ONE}")
        replace(file, b"short\n")  # no token: whoever wrote it is at work, or mistaken
        assert await echo(channel, "unary_unary", f"Bearer {TWO}") == "served"
        file.unlink()
        assert await echo(channel, "unary_unary", f"Bearer {TWO}") == "served"
        replace(file, b"")  # nobody any more
        assert "isn't known" in await echo(channel, "unary_unary", f"Bearer {TWO}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no token"),
        (b"# none\n\n", "holds no token"),
        (f"{ONE}\nsecret\n".encode(), r"line 2: a token is 16 or more ASCII characters"),
        (b"two words are no token", "line 1: a token is"),
        ("schlüssel-0123456789".encode(), "line 1: a token is"),
        (b"\xffsecret-0123456789", "can't read .*: UnicodeDecodeError"),
    ],
)
def test_a_file_without_tokens_is_a_config_error_that_reports_none(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        BearerTokens(str(path))
    assert "secret" not in str(caught.value) and "two words" not in str(caught.value)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"# of one client\r\n\r\n", b"\n \t"])
def test_a_clients_file_holds_one_token_beside_comments(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(before + f"{ONE}\n\n# end".encode())
    assert one_token(path) == ONE
    assert BearerTokens(str(path))  # a server reads the same format


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no tokens; it must hold one"),
        (b"# none\n\n", "holds no tokens"),
        (f"{ONE}\n{TWO}\n".encode(), "holds 2 tokens; it must hold one"),
        (f"{ONE} {TWO}".encode(), "line 1: a token is 16 or more ASCII"),
        (f"{ONE}\x7f".encode(), "line 1: a token is"),
    ],
)
def test_a_clients_file_without_one_token_is_a_config_error_that_reports_none(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        one_token(path)
    assert ONE not in str(caught.value)


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        BearerTokens(str(tmp_path / "none"))


def forbid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a chmod, which a superuser's test wouldn't feel; the stamp doesn't change."""
    read = Path.read_text

    def refused(asked: Path, *how: str, **named: str) -> str:
        if asked == path:
            raise PermissionError(13, "Permission denied")
        return read(asked, *how, **named)

    monkeypatch.setattr(Path, "read_text", refused)


async def test_a_file_that_may_be_read_again_is_read_though_it_did_not_change(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(file) as channel:
        replace(file, f"{TWO}\n".encode())
        with monkeypatch.context() as forbidden:
            forbid(file, forbidden)
            for _ in range(3):
                assert await echo(channel, "unary_unary", f"Bearer {ONE}") == "served"
        assert caplog.text.count("tokens stay as they were") == 1
        assert await echo(channel, "unary_unary", f"Bearer {TWO}") == "served"


async def test_one_change_for_the_worse_is_one_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(file) as channel:
        for times, change in enumerate([file.unlink, lambda: replace(file, b"short\n")], start=1):
            change()
            for _ in range(3):
                assert await echo(channel, "unary_unary", f"Bearer {ONE}") == "served"
            assert caplog.text.count("tokens stay as they were") == times
        replace(file, f"{ONE}\n".encode())
        assert await echo(channel, "unary_unary", f"Bearer {ONE}") == "served"
        file.unlink()  # again
        assert await echo(channel, "unary_unary", f"Bearer {ONE}") == "served"
        assert caplog.text.count("tokens stay as they were") == 3
