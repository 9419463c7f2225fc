"""The processes that the manifests describe, started as they say: they start, serve and stop.

Only the weights' volume is filled with other models than it will have: tiny ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from client.client import Client, Output, Request
from common.pb import drafter_pb2, drafter_pb2_grpc, verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.types import OpenSession, Proposal
from common.wire.verify import verify_request_to_pb
from tests.deploy.manifests import deployment, overlay, settings
from tests.deploy.pods import Pod
from tests.deploy.sandbox import Sandboxed, possible
from tests.rpc.tiny_dns import TinyDns, answering_dns
from tests.support.fake_pairs import files
from tests.support.weights_on_disk import write_preset

pytestmark = pytest.mark.long

OBJECTS = overlay("cpu")
LOOK_EVERY_S = 0.2  # a process of its own reports to nobody that it has come so far
NOT_SERVING = 2
TARGET, DRAFT = ("wide", 0), ("narrow", 7)
PROMPT = "def add(left, right):"


def addresses(count: int) -> list[str]:
    """Of this test alone: loopback has sixteen million."""
    base = f"127.{random.SystemRandom().randrange(64, 255)}.{os.getpid() % 250}"
    return [f"{base}.{host + 2}" for host in range(count)]


def pod(service: str, address: str, folder: Path, dns: TinyDns | None = None) -> Pod:
    extra = {}
    if dns is not None:
        name, port = settings(OBJECTS, "drafter")["verifier"].removeprefix("dns:///").split(":")
        extra["CROSSDRAFT_DRAFTER_VERIFIER"] = dns.target(name, int(port))
    made = Pod(OBJECTS, service, address, folder, extra)
    vocabulary, seed = TARGET if service == "verifier" else DRAFT
    write_preset(made.weights, settings(OBJECTS, service)["model"], vocabulary, seed)
    made.own_volumes()
    return made


async def until(process: Sandboxed, holds: Callable[[], Awaitable[bool]], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not await holds():
            assert process.process is not None
            assert process.process.poll() is None, process.reported()
            await asyncio.sleep(LOOK_EVERY_S)


async def started(made: Pod, process: Sandboxed) -> None:
    """The startup probe within its budget, and then both others at once."""
    await until(process, lambda: made.probe("startup"), made.budget_s("startup"))
    assert await made.probe("liveness")
    await until(process, lambda: made.probe("readiness"), made.budget_s("startup"))


async def ended(made: Pod, process: Sandboxed) -> int:
    """Its exit status, if it comes before the pod would be killed."""
    assert process.process is not None
    grace_s = made.spec["terminationGracePeriodSeconds"]
    return await asyncio.wait_for(asyncio.to_thread(process.process.wait), grace_s)


def assert_confined(made: Pod, process: Sandboxed) -> None:
    """Checked where the machine lets us confine it; see tests/deploy/sandbox.py."""
    if not possible() or os.geteuid() != 0:
        return
    status = process.status()
    own = made.spec["securityContext"]
    assert set(status["Uid"].split()) == {str(own["runAsUser"])}
    assert set(status["Gid"].split()) == {str(own["runAsGroup"])}
    assert (status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (
        "1", 0, 0
    )  # fmt: skip
    mounts = {
        line.split()[4]: line.split()[5].split(",")
        for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
    }
    writable = {m["mountPath"] for m in made.container["volumeMounts"] if not m.get("readOnly")}
    ours = {place for place in mounts if not place.startswith(("/dev", "/proc", "/sys"))}
    assert {place for place in ours if "rw" in mounts[place]} == writable
    assert status["NSpid"].split()[-1] == "1"


@pytest.fixture
async def dns() -> AsyncIterator[TinyDns]:
    async with answering_dns([]) as server:
        yield server


async def generate(made: Pod, draft_steps: int | None) -> Output:
    async with Client(made.target()) as client:
        return await client.generate(Request(40, prompt=PROMPT, draft_steps=draft_steps))


async def test_pods_start_serve_and_stop_in_mid_stream_as_the_manifests_say(
    tmp_path: Path, dns: TinyDns
) -> None:
    first, second, third = addresses(3)
    verifiers = [pod("verifier", a, tmp_path / a) for a in (first, second)]
    drafter = pod("drafter", third, tmp_path / third, dns)
    for made in (verifiers[0], drafter):
        with made.fetching() as fetching:
            assert await ended(made, fetching) == 0, fetching.reported()
    dns.addresses = [first, second]
    async with AsyncExitStack() as stack:
        processes = [stack.enter_context(made.serving()) for made in (*verifiers, drafter)]
        for made, process in zip((*verifiers, drafter), processes, strict=True):
            await started(made, process)
            assert_confined(made, process)
        drafted = await generate(drafter, None)
        alone = await generate(drafter, 0)
        assert drafted.text == alone.text
        assert len(drafted.token_ids) == 40
        assert dns.asked

        await _stop_a_verifier_in_mid_session(verifiers[0], processes[0], stack)
        dns.addresses = [second]
        assert (await generate(drafter, None)).text == alone.text

        await _stop_a_drafter_in_mid_stream(drafter, processes[2], processes[1], stack)
        processes[1].send(signal.SIGTERM)
        assert await ended(verifiers[1], processes[1]) == 0, processes[1].reported()


async def _stop_a_verifier_in_mid_session(
    made: Pod, process: Sandboxed, stack: AsyncExitStack
) -> None:
    """A session is between two rounds when SIGTERM comes, and has all of them."""
    channel = await stack.enter_async_context(open_channel(made.target(), 2**24))
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
    await call.write(verify_request_to_pb(OpenSession((5, 6), 4, files(TARGET[0]).sha256)))
    verdict = (await call.read()).verdict
    readiness = await made.watch(stack)
    assert (await readiness.read()).status != NOT_SERVING
    process.send(signal.SIGTERM)
    assert (await readiness.read()).status == NOT_SERVING
    assert await made.probe("liveness")
    for round_ in range(1, 4):
        proposal = Proposal(round_, verdict.committed_length, ())
        await call.write(verify_request_to_pb(proposal))
        verdict = (await call.read()).verdict
    assert verdict.finish_reason
    assert await ended(made, process) == 0, process.reported()


async def _stop_a_drafter_in_mid_stream(
    made: Pod, process: Sandboxed, verifier: Sandboxed, stack: AsyncExitStack
) -> None:
    """The verifier is paused meanwhile, so that the stream can't be over before SIGTERM."""
    channel = await stack.enter_async_context(open_channel(made.target(), 2**24))
    request = drafter_pb2.GenerateRequest(prompt=PROMPT, max_new_tokens=1000, ignore_eos=True)
    call = drafter_pb2_grpc.DrafterServiceStub(channel).Generate(request)
    deltas = list((await call.read()).deltas.deltas)
    verifier.send(signal.SIGSTOP)
    readiness = await made.watch(stack)
    assert (await readiness.read()).status != NOT_SERVING
    process.send(signal.SIGTERM)
    assert (await readiness.read()).status == NOT_SERVING
    assert await made.probe("liveness")
    verifier.send(signal.SIGCONT)
    summaries = []
    while isinstance(response := await call.read(), drafter_pb2.GenerateResponse):
        deltas += response.deltas.deltas
        summaries += [response.summary] if response.HasField("summary") else []
    assert [summary.output_tokens for summary in summaries] == [len(deltas)] == [1000]
    assert await ended(made, process) == 0, process.reported()


async def test_a_pod_that_still_loads_stops_at_once(tmp_path: Path) -> None:
    """The first process of a container ignores a signal for which it has no handler."""
    (address,) = addresses(1)
    made = pod("drafter", address, tmp_path / address)  # finds no verifier, so it never serves
    with made.serving() as process:

        async def loading() -> bool:
            return "starting with" in process.reported()

        await until(process, loading, made.budget_s("startup"))
        process.send(signal.SIGTERM)
        assert await ended(made, process) == 0, process.reported()
        assert "asked to stop before anything was served" in process.reported()


def test_the_two_deployments_are_all_there_is() -> None:
    names = {o["metadata"]["name"] for o in OBJECTS if o["kind"] == "Deployment"}
    assert names == {deployment(OBJECTS, s)["metadata"]["name"] for s in ("verifier", "drafter")}


def test_a_process_that_writes_where_it_may_not_is_refused(tmp_path: Path) -> None:
    """The sandbox holds, so that what starts in it needs no more than its volumes."""
    if not possible():
        return
    with Sandboxed(["touch", "/weights"], {}, [], 10001, tmp_path / "sandbox") as process:
        assert process.process is not None
        assert process.process.wait(30) != 0
        assert "Read-only file system" in process.reported()


async def test_a_process_that_is_left_ends_with_its_sandbox(tmp_path: Path) -> None:
    with Sandboxed(["sleep", "1000"], {}, [], 10001, tmp_path / "sandbox") as process:

        async def sleeps() -> bool:
            try:
                return process.status()["Name"] == "sleep"
            except (OSError, ValueError):  # `unshare` hasn't come so far
                return False

        await until(process, sleeps, 60)
        left = os.pidfd_open(process.pid)
    try:
        ended, _, _ = await asyncio.to_thread(select.select, [left], [], [], 60)
        assert ended == [left]
    finally:
        os.close(left)
