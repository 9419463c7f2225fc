"""The command as a test runs it, and a drafter that answers it without any model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
from click.testing import CliRunner, Result

from cli.main import main
from common.errors import OverCapacity
from common.pb import drafter_pb2, drafter_pb2_grpc, sampling_pb2
from common.rpc.server import GrpcServer, ServerSettings, Service
from common.wire.generate import deltas_response


def run(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env, input=stdin)


def one_line(result: Result, exit_code: int) -> str:
    assert result.exit_code == exit_code
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


class FakeDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers with the request's own shape, or fails as asked."""

    async def Generate(
        self, request: drafter_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.GenerateResponse]:
        if request.prompt == "cut":
            return
        if request.prompt == "echo":
            text = " ".join(str(request).split())
            summary = drafter_pb2.Summary(
                stop_string="END", prompt_tokens=2, acceptance_rule=request.acceptance_rule
            )
            delta = drafter_pb2.TokenDelta(
                token_id=0, text=text, origin=drafter_pb2.TOKEN_ORIGIN_VERIFIER
            )
            if request.sampling.HasField("logprobs"):
                delta.logprobs.CopyFrom(
                    sampling_pb2.TokenLogprobs(
                        logprob=-0.5, top_token_ids=[5, 6], top_logprobs=[-0.5, -1.5]
                    )
                )
            yield deltas_response([delta])
            yield drafter_pb2.GenerateResponse(summary=summary)
            return
        if request.prompt == "full":
            raise OverCapacity("sessions", 4, 250)
        if request.prompt == "full for long":
            raise OverCapacity("sessions", 4, 60_000)
        text = request.prompt or " | ".join(f"{m.role}: {m.content}" for m in request.chat.messages)
        draft, verifier = drafter_pb2.TOKEN_ORIGIN_DRAFT, drafter_pb2.TOKEN_ORIGIN_VERIFIER
        yield deltas_response([drafter_pb2.TokenDelta(token_id=5, text=text, origin=verifier)])
        yield deltas_response(
            [
                drafter_pb2.TokenDelta(token_id=0, text="é", origin=draft),
                drafter_pb2.TokenDelta(token_id=7, text="", origin=verifier),
                drafter_pb2.TokenDelta(text="\ufffd", origin=verifier),
            ]
        )
        yield drafter_pb2.GenerateResponse(
            summary=drafter_pb2.Summary(
                finish_reason=sampling_pb2.FINISH_REASON_LENGTH,
                output_tokens=3,
                rounds=1,
                mean_acceptance_length=2.0,
                drafted_by_position=[1],
                accepted_by_position=[1],
                time_to_first_token_us=500_000,
                total_us=1_000_000,
                stage_times=drafter_pb2.StageTimes(bridge_us=250_000),
                drafting=request.draft_steps != 0 or not request.HasField("draft_steps"),
            )
        )


@contextmanager
def serving_fake_drafter() -> Iterator[str]:
    """A fake drafter on its own thread, since the command runs an event loop on ours."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[GrpcServer, int]:
        service = Service(
            "crossdraft.v1.DrafterService",
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server,
            FakeDrafter(),
        )
        server = GrpcServer(ServerSettings("127.0.0.1:0", 2**20, 1.0), [service])
        port = await server.start()
        await server.set_serving(True)
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
