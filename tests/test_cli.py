"""The command line: help, errors in one line, and a client of a fake drafter."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from cli import streaming
from cli.children import Child, free_addresses
from cli.client import Output, Piece, Statistics
from cli.comparison import comparison
from cli.main import main
from common.errors import OverCapacity
from common.grpc_server import GrpcServer, ServerSettings, Service
from common.pb import drafter_pb2, drafter_pb2_grpc
from common.types import FinishReason, Origin

ROOT = Path(__file__).parent.parent
COMMANDS = ("verifier", "drafter", "generate", "models", "inspect-pair", "demo")


def run(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env, input=stdin)


def one_line(result: Result, exit_code: int) -> str:
    assert result.exit_code == exit_code
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_help_names_every_command() -> None:
    text = run("--help").output
    assert all(f"\n  {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    for parameter in main.commands[command].params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_help_does_not_load_torch() -> None:
    code = "import sys, cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_unknown_flag_suggests_the_closest() -> None:
    line = one_line(run("verifier", "--max-sesions", "3"), 2)
    assert "--max-sessions" in line


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_an_unknown_key_in_the_file_is_refused(service: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[verifier]\nmax_sesions = 1\n")
    line = one_line(run(service, "--config", str(file)), 2)
    assert "unknown key verifier.max_sesions; did you mean max_sessions?" in line


def test_an_unknown_variable_is_refused() -> None:
    line = one_line(run("drafter", env={"CROSSDRAFT_DRAFTER_DRAFT_STEP": "3"}), 2)
    assert "did you mean CROSSDRAFT_DRAFTER_DRAFT_STEPS?" in line


def test_a_value_out_of_range_is_refused() -> None:
    line = one_line(run("verifier", "--max-sessions", "0"), 2)
    assert "max_sessions is 0; it must be at least 1" in line


def test_models_lists_presets_and_what_is_cached(tmp_path: Path) -> None:
    env = {"CROSSDRAFT_CACHE": str(tmp_path), "COLUMNS": "200"}
    output = run("models", env=env).output
    assert "smollm2-135m" in output
    assert "Gemma terms" in output
    line = one_line(run("models", "--fetch", "nonsense", env=env), 1)
    assert "neither a preset" in line


class FakeDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers with the request's own shape, or fails as asked."""

    async def Generate(
        self, request: drafter_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.GenerateResponse]:
        if request.prompt == "cut":
            return
        if request.prompt == "echo":
            text = " ".join(str(request).split())
            summary = drafter_pb2.Summary(stop_string="END", prompt_tokens=2, rule=request.rule)
            piece = drafter_pb2.Piece(text=text, origin=drafter_pb2.TOKEN_ORIGIN_VERIFIER)
            if request.sampling.HasField("logprobs"):
                piece.logprob = -0.5
                piece.top_token_ids.extend([5, 6])
                piece.top_logprobs.extend([-0.5, -1.5])
            yield drafter_pb2.GenerateResponse(pieces=[piece], summary=summary)
            return
        if request.prompt == "full":
            raise OverCapacity("sessions", 4, 250)
        text = request.prompt or " | ".join(f"{m.role}: {m.content}" for m in request.chat.messages)
        draft, verifier = drafter_pb2.TOKEN_ORIGIN_DRAFT, drafter_pb2.TOKEN_ORIGIN_VERIFIER
        yield drafter_pb2.GenerateResponse(
            pieces=[drafter_pb2.Piece(token_id=5, text=text, origin=verifier)]
        )
        yield drafter_pb2.GenerateResponse(
            pieces=[
                drafter_pb2.Piece(token_id=0, text="é", origin=draft),
                drafter_pb2.Piece(token_id=7, text="", origin=verifier),
            ]
        )
        yield drafter_pb2.GenerateResponse(
            summary=drafter_pb2.Summary(
                stop_reason=drafter_pb2.STOP_REASON_LENGTH,
                output_tokens=3,
                rounds=1,
                mean_acceptance_length=2.0,
                drafted_by_position=[1],
                accepted_by_position=[1],
                time_to_first_token_s=0.5,
                total_s=1.0,
                room_s={"bridge": 0.25},
                tail_text="\ufffd",
                drafting=request.draft_steps != 0 or not request.HasField("draft_steps"),
            )
        )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
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


def test_generate_streams_plain_text_when_piped(address: str) -> None:
    result = run("generate", "hello ", "--address", address)
    assert result.exit_code == 0, result.output
    assert result.stdout == "hello é\ufffd\n"
    told = "0 prompt tokens · 3 tokens · 4.0 tokens/s · first token after 0.50 s · AL 2.00"
    assert told in result.stderr


def test_generate_reads_standard_input_and_makes_chats(address: str) -> None:
    assert run("generate", "-", "--address", address, stdin="from a pipe").stdout.startswith(
        "from a pipe"
    )
    chat = run("generate", "hi", "--chat", "--system", "be brief", "--address", address)
    assert chat.stdout.startswith("system: be brief | user: hi")


def test_generate_json_is_one_object_and_nothing_else(address: str) -> None:
    result = run("generate", "hello ", "--json", "--draft-steps", "0", "--address", address)
    answer = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert answer["text"] == "hello é\ufffd"
    assert answer["token_ids"] == [5, 0, 7]
    assert answer["origins"] == ["verifier", "draft", "verifier"]
    assert answer["stop_reason"] == "length"
    assert answer["statistics"]["drafting"] is False
    assert answer["statistics"]["room_s"] == {"bridge": 0.25}
    assert answer["statistics"]["acceptance_by_position"] == [1.0]


SAMPLING_FLAGS = {
    "--temperature=0.7": "temperature: 0.7",
    "--top-k=5": "top_k: 5",
    "--top-p=0.9": "top_p: 0.9",
    "--min-p=0.1": "min_p: 0.1",
    "--seed=0": "seed: 0",
    "--repetition-penalty=1.5": "repetition_penalty: 1.5",
    "--presence-penalty=-2": "presence_penalty: -2",
    "--frequency-penalty=2": "frequency_penalty: 2",
    "--logit-bias=7=-1.5": "logit_bias { key: 7 value: -1.5 }",
    "--min-new-tokens=3": "min_new_tokens: 3",
    "--stop=END": 'stop: "END"',
    "--stop-token-id=9": "stop_token_ids: 9",
    "--rule=no_q": "rule: RULE_NO_Q",
}


def test_what_a_request_may_say_has_a_flag(address: str) -> None:
    result = run("generate", "echo", *SAMPLING_FLAGS, "--address", address)
    assert result.exit_code == 0, result.output
    assert all(told in result.stdout for told in SAMPLING_FLAGS.values()), result.stdout
    assert "ended by the stop string 'END'" in result.stderr and "rule no_q" in result.stderr
    plain = run("generate", "echo", "--address", address).stdout
    assert not any(told.split(":")[0] + ":" in plain for told in SAMPLING_FLAGS.values())


def test_log_probabilities_and_usage_are_in_the_json_object(address: str) -> None:
    answer = json.loads(run("generate", "echo", "--logprobs=2", "--address", address).stdout)
    assert answer["logprobs"] == [
        {"logprob": -0.5, "top_ids": [5, 6], "top_logprobs": [-0.5, -1.5]}
    ]
    assert answer["usage"] == {"prompt_tokens": 2, "output_tokens": 0, "total_tokens": 2}
    assert (answer["stop_string"], answer["rule"]) == ("END", None)
    assert "logprobs" not in json.loads(run("generate", "x", "--json", "--address", address).stdout)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--temperature=-1", "--temperature is -1.0; it must be 0 (greedy) or from"),
        ("--temperature=nan", "--temperature is nan"),
        ("--top-k=0", "--top-k is 0"),
        ("--presence-penalty=3", "--presence-penalty is 3.0; it must be from -2 to 2"),
        ("--logit-bias=7", "'7' isn't a token id, an equals sign and a number"),
        ("--rule=best", "--rule"),
    ],
)
def test_a_flag_out_of_range_is_named(flag: str, words: str) -> None:
    assert words in one_line(run("generate", "x", flag), 2)


def test_a_failed_call_is_one_line(address: str) -> None:
    line = one_line(run("generate", "full", "--address", address), 1)
    assert line.startswith("RESOURCE_EXHAUSTED: all 4 sessions are in use")
    (nobody,) = free_addresses(1)
    assert one_line(run("generate", "x", "--address", nobody), 1).startswith("UNAVAILABLE: ")


def test_a_stream_without_a_summary_is_one_line(address: str) -> None:
    line = one_line(run("generate", "cut", "--address", address), 1)
    assert line == "crossdraft: the drafter's stream ended without a summary\n"


def test_a_terminal_gets_no_control_characters_of_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streaming, "Console", partial(Console, force_terminal=True, no_color=True))
    writer = streaming.PieceWriter()
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    writer(Piece(1, f"a{every}z", Origin.DRAFT))
    written = capsys.readouterr().out
    assert written.startswith("a␀␁") and "␛" in written and "␍" in written and "\n" in written
    assert not {*every} - {"\n", "\t"} & {*written}


def test_generate_refuses_0_tokens(address: str) -> None:
    assert "--max-new-tokens" in one_line(run("generate", "x", "--max-new-tokens", "0"), 2)


def statistics(**changes) -> Statistics:
    fields = {
        "stop_reason": FinishReason.STOP,
        "prompt_tokens": 3,
        "output_tokens": 1,
        "rounds": 0,
        "mean_acceptance_length": 0.0,
        "drafted_by_position": (),
        "accepted_by_position": (),
        "time_to_first_token_s": 0.0,
        "total_s": 0.0,
        "room_s": {},
        "wire_bytes": 0,
        "intersection_rounds": 0,
        "text_rounds": 0,
        "drafting": True,
    }
    return Statistics(**{**fields, **changes})


def test_the_comparison_stands_an_output_of_one_token() -> None:
    output = Output("x", (1,), (Origin.VERIFIER,), statistics())
    assert comparison(output, output).row_count >= 6
    shares = statistics(drafted_by_position=(4, 0), accepted_by_position=(3, 0))
    assert shares.acceptance_by_position == (0.75, 0.0)
    assert Piece(1, "x", Origin.DRAFT).text == "x"


async def test_a_child_that_dies_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    arguments = ["verifier", "--max-sessions", "0"]
    with (
        Child(arguments, address, tmp_path / "log") as child,
        pytest.raises(click.ClickException) as caught,
    ):
        await child.wait_serving(60)
    assert "the verifier ended with status 2" in caught.value.message
    assert "max_sessions is 0" in caught.value.message
