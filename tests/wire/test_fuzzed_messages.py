"""Messages of any content to both services: each gets a status, and nobody else's text changes."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.support.watching import pages_left
from cli.children import free_addresses
from client.client import Client, Request
from common.pb import drafter_pb2, verifier_pb2
from common.rpc.channel import open_channel
from common.rpc.error_details import received
from common.sampling.parameters import SamplingParams
from tests.processes.processes import Processes, ServiceProcess
from tests.support.fake_pairs import PROMPTS, files, serving_pair
from tests.wire.fuzzed_messages import messages, raw

MEANT = {
    StatusCode.OK,
    StatusCode.INVALID_ARGUMENT,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.RESOURCE_EXHAUSTED,
}
TIMEOUT_S = 120.0  # a hang, rather than a slow machine
BATCH = 40  # calls at once
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)  # messages are large
VERIFIER, DRAFTER = "/crossdraft.v1.VerifierService/", "/crossdraft.v1.DrafterService/"
NEIGHBOURS = (
    Request(10, prompt=PROMPTS[0], ignore_eos=True),
    Request(10, prompt=PROMPTS[1], ignore_eos=True, sampling=SamplingParams(1.0, seed=5)),
)

STRINGS = (files("wide").sha256, "user", "assistant", "The quick", "\n", "")
Verify = messages(verifier_pb2.VerifyRequest.DESCRIPTOR, STRINGS)
Once = messages(verifier_pb2.VerifyOnceRequest.DESCRIPTOR, STRINGS)
Generate = messages(drafter_pb2.GenerateRequest.DESCRIPTOR, STRINGS)


@st.composite
def openings(sample: st.DrawFn) -> Any:
    """A Verify stream's messages; its first one would do, more often than by chance."""
    opened = verifier_pb2.Open(
        prompt_token_ids=sample(st.lists(st.integers(3, 399), min_size=1, max_size=8)),
        max_new_tokens=sample(st.integers(1, 12)),
        tokenizer_sha256=files("wide").sha256,
    )
    first = st.just(verifier_pb2.VerifyRequest(open=opened))
    return [sample(first | Verify), *sample(st.lists(Verify, max_size=3))]


def calls() -> st.SearchStrategy[list[tuple[str, list[bytes]]]]:
    """(method, messages as bytes)."""

    def serialised(sent: list[Any]) -> list[bytes]:
        return [each.SerializeToString() for each in sent]

    one = st.one_of(
        st.tuples(st.just(VERIFIER + "Verify"), openings().map(serialised)),
        st.tuples(st.just(VERIFIER + "Verify"), st.lists(raw(Verify), min_size=1, max_size=3)),
        st.tuples(st.just(VERIFIER + "VerifyOnce"), (Once.map(_one) | raw(Once)).map(_listed)),
        st.tuples(st.just(DRAFTER + "Generate"), (Generate.map(_one) | raw(Generate)).map(_listed)),
        st.tuples(
            st.sampled_from([VERIFIER + "GetModel", DRAFTER + "GetPair", DRAFTER + "Nothing"]),
            st.binary(max_size=20).map(_listed),
        ),
    )
    return st.lists(one, min_size=BATCH, max_size=BATCH)


def _one(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _listed(data: bytes) -> list[bytes]:
    return [data]


class Target:
    """A pair that serves, and those who use it meanwhile."""

    def __init__(self, client: Client, verifier: Any, drafter: Any) -> None:
        self._client = client
        self._channels = {VERIFIER: verifier, DRAFTER: drafter}
        self.expected: list[str] = []

    async def status(self, method: str, sent: list[bytes]) -> StatusCode | None:
        """How the call ends. None: the client's own status, the service's was lost.

        grpc.aio makes up INTERNAL for a write that meets the call's end; a service that is at
        fault gives its INTERNAL a name.
        """
        service = VERIFIER if method.startswith(VERIFIER) else DRAFTER
        call = self._channels[service].stream_stream(method)(_each(sent))
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            named = received(error.trailing_metadata()) is not None
            return None if error.code() is StatusCode.INTERNAL and not named else error.code()
        return await call.code()

    async def neighbours(self) -> list[str]:
        outputs = await asyncio.gather(*map(self._client.generate, NEIGHBOURS))
        return [f"{output.text} {output.token_ids}" for output in outputs]

    async def beside(self, called: list[tuple[str, list[bytes]]]) -> list[StatusCode | None]:
        """All calls at once, beside sessions whose output is known."""
        neighbours = asyncio.create_task(self.neighbours())
        statuses = await asyncio.gather(*(self.status(*each) for each in called))
        assert await neighbours == self.expected
        return statuses


async def _each(sent: list[bytes]) -> AsyncIterator[bytes]:
    for message in sent:
        yield message


class Thread:
    """An event loop on its own thread, since hypothesis' examples aren't coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.stop()


async def target_at(stack: AsyncExitStack, client: Client, verifier: str, drafter: str) -> Target:
    """At these addresses, until the stack is left."""
    channels = [
        await stack.enter_async_context(open_channel(address, 2**20))
        for address in (verifier, drafter)
    ]
    made = Target(client, *channels)
    made.expected = await made.neighbours()
    return made


@pytest.fixture(scope="module")
def target(thread: Thread) -> Iterator[Target]:
    """At the end, both services are asked whether they hold anything."""
    stack = AsyncExitStack()

    async def start() -> Target:
        sizes = {"max_sessions": 64, "pages": 200}
        pair = await stack.enter_async_context(serving_pair(verifier=sizes))
        ports = (pair.verifier.port, pair.drafter.port)
        return await target_at(stack, pair.client, *(f"127.0.0.1:{port}" for port in ports))

    yield thread.run(start())
    thread.run(stack.aclose())


@pytest.fixture(scope="module")
def processes(thread: Thread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same as processes. At the end no page is held, and they leave as they should."""
    stack = AsyncExitStack()
    metrics = dict(zip(("verifier", "drafter"), free_addresses(2), strict=True))
    started: list[ServiceProcess] = []

    async def start() -> Target:
        made = await stack.enter_async_context(Processes(tmp_path_factory.mktemp("fuzzed")))
        started.append(await made.verifier(metrics_listen=metrics["verifier"]))
        verifier = started[0].address
        started.append(await made.drafter(verifier, metrics_listen=metrics["drafter"]))
        client = await stack.enter_async_context(Client(started[1].address))
        return await target_at(stack, client, verifier, started[1].address)

    async def end() -> None:
        urls = {name: f"http://{address}/metrics" for name, address in metrics.items()}
        assert not any((await pages_left(urls, TIMEOUT_S)).values())
        for each in reversed(started):
            await each.signal(signal.SIGTERM)
            assert await each.ended() == 0
        await stack.aclose()

    yield thread.run(start())
    thread.run(end())


def check(thread: Thread, target: Target, called: list[tuple[str, list[bytes]]]) -> None:
    statuses = thread.run(target.beside(called))
    for (method, sent), status in zip(called, statuses, strict=True):
        meant = {StatusCode.UNIMPLEMENTED} if method.endswith("Nothing") else MEANT
        assert status is None or status in meant, f"{method} {sent}: {status}"


@settings(max_examples=3, suppress_health_check=SLOW)
@given(called=calls())
def test_any_message_gets_a_status_and_disturbs_nobody(
    thread: Thread, target: Target, called: list[tuple[str, list[bytes]]]
) -> None:
    check(thread, target, called)


@pytest.mark.long
@settings(max_examples=250, suppress_health_check=SLOW)  # 10,000 calls, of some messages each
@given(called=calls())
def test_ten_thousand_messages_get_a_status_each_and_disturb_nobody(
    thread: Thread, processes: Target, called: list[tuple[str, list[bytes]]]
) -> None:
    check(thread, processes, called)
