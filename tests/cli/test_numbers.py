"""Numbers on the command line: each has a range, and a refusal names flag, value and range."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
import grpc
import pytest

from cli.children import free_addresses
from cli.main import main
from client.client import Client, Request
from client.resuming import generate_resuming
from common.settings.numbers import Number
from tests.cli.command_line import one_line, run, serving_fake_drafter

SAMPLING = {  # their ranges are those of SamplingParams
    *("temperature", "top_k", "top_p", "min_p", "seed", "min_new_tokens", "logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
}
NUMBERS = [
    (command, parameter.opts[0])
    for command in main.commands
    for parameter in main.commands[command].params
    if isinstance(parameter.type, Number)
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_fake_drafter() as found:
        yield found


@pytest.mark.parametrize("command", main.commands)
def test_every_number_has_a_range(command: str) -> None:
    plain = (click.types.IntParamType, click.types.FloatParamType)
    for parameter in main.commands[command].params:
        if isinstance(parameter.type, plain) and parameter.name not in SAMPLING:
            assert isinstance(parameter.type, Number), parameter.name


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300", "9" * 20, "-1", "x"])
@pytest.mark.parametrize(("command", "flag"), NUMBERS)
def test_a_number_out_of_range_is_refused(command: str, flag: str, value: str) -> None:
    prompt = ("x",) if command == "generate" else ()
    line = one_line(run(command, *prompt, f"{flag}={value}"), 2)
    assert line.startswith(f"crossdraft: {flag} is {value}; it must be a ") and "from " in line


@pytest.mark.parametrize("flag", [f"--{name.replace('_', '-')}" for name in sorted(SAMPLING)])
@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "9" * 20])
def test_a_sampling_number_out_of_range_is_refused(flag: str, value: str) -> None:
    assert flag in one_line(run("generate", "x", f"{flag}={value}"), 2)


def test_asking_again_ends_with_the_timeout(address: str) -> None:
    """A pause that would end after it isn't begun."""
    began = time.monotonic()
    flags = ("--retry", "120", "--timeout-s", "20", "--address", address)
    line = one_line(run("generate", "full for long", *flags), 1)
    assert line.startswith("RESOURCE_EXHAUSTED: ") and time.monotonic() - began < 10


async def test_no_number_of_seconds_is_no_time_for_another_attempt() -> None:
    losses, request = list[Exception](), Request(4, prompt="x")
    async with Client(free_addresses(1)[0]) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await generate_resuming(client, request, float("nan"), on_pause=losses.append)
    assert not losses
