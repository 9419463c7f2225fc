"""`crossdraft generate`: ask a drafter and show the text as it comes.

Knows flags, and what goes to stdout and what to stderr. Does not know the protocol
(client/client.py) and styles (client/streaming.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click
import grpc

from cli.options.connection import Connection, connection_options
from cli.options.sampling import sampling_of, sampling_options
from cli.options.text import Text, holds_everything, standard_input
from client.client import Request
from client.resuming import generate_resuming
from client.streaming import DeltaWriter, one_line, rpc_line
from common.sampling.acceptance_rule import AcceptanceRule
from common.settings.numbers import MAX_COUNT, MAX_S, MIN_S, Number
from common.types import BridgeMode


@click.command("generate")
@click.argument("prompt", type=Text())
@click.option("--chat", is_flag=True, help="PROMPT is a user's message, not text to continue.")
@click.option(
    "--system", type=Text(), metavar="TEXT", help="A system message before it; implies --chat."
)
@click.option(
    "--max-new-tokens",
    type=Number(int, 1, MAX_COUNT),
    default=128,
    show_default=True,
    help="Where to stop at the latest.",
)
@click.option(
    "--stop",
    type=Text(),
    multiple=True,
    metavar="TEXT",
    help="End the output before this text. May be given many times; the first to come ends it.",
)
@click.option(
    "--stop-token-id",
    "stop_ids",
    type=Number(int, 0, MAX_COUNT),
    multiple=True,
    help="End the output with this token of the target. May be given many times.",
)
@sampling_options
@click.option(
    "--rule",
    type=click.Choice([rule.label for rule in AcceptanceRule]),
    help="How drafts are accepted; every rule is lossless. Left out: what suits "
    "the flags and the pair.",
)
@click.option(
    "--draft-steps",
    type=Number(int, 0, MAX_COUNT),
    help="Draft steps per round; 0: the target alone. Left out: the drafter's setting.",
)
@click.option(
    "--bridge",
    type=click.Choice([mode.value for mode in BridgeMode]),
    help="How drafts cross between the vocabularies. Left out: the drafter's setting.",
)
@connection_options
@click.option(
    "--timeout-s", type=Number(float, MIN_S, MAX_S), help="Give up after so many seconds."
)
@click.option(
    "--retry",
    "retry_s",
    type=Number(float, 0, MAX_S),
    default=0.0,
    metavar="SECONDS",
    help="When the drafter is lost or full, ask again for so long from then on, within "
    "--timeout-s; the text goes on where it stopped.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object at the end, and nothing else."
)
def generate(
    prompt: str,
    chat: bool,
    system: str | None,
    max_new_tokens: int,
    stop: tuple[str, ...],
    stop_ids: tuple[int, ...],
    rule: str | None,
    draft_steps: int | None,
    bridge: str | None,
    connection: Connection,
    timeout_s: float | None,
    retry_s: float,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Generate text from PROMPT; - reads it from standard input.

    On a terminal, text from accepted drafts is green and the verifier's own is bold. Statistics go
    to standard error.
    """
    if prompt == "-":
        prompt = standard_input()
    messages = (("system", system),) if system is not None else ()
    request = Request(
        max_new_tokens=max_new_tokens,
        prompt=None if chat or messages else prompt,
        messages=(*messages, ("user", prompt)) if chat or messages else None,
        draft_steps=draft_steps,
        bridge=BridgeMode(bridge) if bridge else None,
        stop=stop,
        stop_ids=stop_ids,
        sampling=sampling_of(sampling),
        rule=AcceptanceRule[rule.upper()] if rule else None,
    )
    as_json = as_json or request.sampling.logprobs is not None
    try:
        asyncio.run(_generate(connection, request, timeout_s, retry_s, as_json))
    except grpc.aio.AioRpcError as error:
        click.echo(rpc_line(error), err=True)
        sys.exit(1)


async def _generate(
    connection: Connection, request: Request, timeout_s: float | None, retry_s: float, as_json: bool
) -> None:
    writer = DeltaWriter()

    def paused(error: Exception) -> None:
        click.echo(f"\n{rpc_line(error)}; asking again", err=True)

    async with connection.client() as client:
        try:
            output = await generate_resuming(
                client,
                request,
                retry_s,
                (lambda delta: None) if as_json else writer,
                timeout_s,
                paused,
            )
        finally:
            writer.end()
    if as_json:
        ascii_alone = not holds_everything(sys.stdout.encoding)
        click.echo(json.dumps(output.as_json(), ensure_ascii=ascii_alone))
    else:
        click.echo(one_line(output.statistics), err=True)
