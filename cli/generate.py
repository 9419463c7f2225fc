"""`crossdraft generate`: ask a drafter and show the text as it comes.

Knows: flags, and what goes to stdout and what to stderr. Refuses to know: the protocol
(cli/client.py) and styles (cli/streaming.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click
import grpc

from cli.client import Client, Request
from cli.sampling_options import sampling_of, sampling_options
from cli.streaming import PieceWriter, one_line, rpc_line
from common.grpc_channel import ClientTls
from common.types import AcceptanceRule, BridgeMode

ADDRESS = "127.0.0.1:50052"


@click.command("generate")
@click.argument("prompt")
@click.option("--chat", is_flag=True, help="PROMPT is a user's message, not text to continue.")
@click.option("--system", metavar="TEXT", help="A system message before it; implies --chat.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Where to stop at the latest.",
)
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    help="End the output before this text. May be given many times; the first to come ends it.",
)
@click.option(
    "--stop-token-id",
    "stop_ids",
    type=click.IntRange(min=0),
    multiple=True,
    help="End the output with this token of the target. May be given many times.",
)
@sampling_options
@click.option(
    "--rule",
    type=click.Choice([rule.value for rule in AcceptanceRule]),
    help="How drafts are accepted; the text follows the same law with each. Left out: what suits "
    "the flags and the pair.",
)
@click.option(
    "--draft-steps",
    type=click.IntRange(min=0),
    help="Draft steps per round; 0: the target alone. Left out: the drafter's setting.",
)
@click.option(
    "--bridge",
    type=click.Choice([mode.value for mode in BridgeMode]),
    help="How drafts cross between the vocabularies. Left out: the drafter's setting.",
)
@click.option(
    "--address",
    default=ADDRESS,
    envvar="CROSSDRAFT_ADDRESS",
    show_default=True,
    show_envvar=True,
    help="Where the drafter listens.",
)
@click.option("--tls-ca", help="PEM file that signed the drafter's certificate; connect over TLS.")
@click.option("--timeout-s", type=float, help="Give up after so many seconds.")
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
    address: str,
    tls_ca: str | None,
    timeout_s: float | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Generate text from PROMPT; - reads it from standard input.

    On a terminal, text from accepted drafts is green and the verifier's own is bold. Statistics go
    to standard error.
    """
    if prompt == "-":
        prompt = click.open_file("-", encoding="utf-8").read()
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
        rule=AcceptanceRule(rule) if rule else None,
    )
    as_json = as_json or request.sampling.logprobs is not None
    tls = ClientTls(tls_ca) if tls_ca else None
    try:
        asyncio.run(_generate(address, tls, request, timeout_s, as_json))
    except grpc.aio.AioRpcError as error:
        click.echo(rpc_line(error), err=True)
        sys.exit(1)


async def _generate(
    address: str, tls: ClientTls | None, request: Request, timeout_s: float | None, as_json: bool
) -> None:
    async with Client(address, tls) as client:
        if as_json:
            output = await client.generate(request, timeout_s=timeout_s)
            click.echo(json.dumps(output.as_json(), ensure_ascii=False))
            return
        writer = PieceWriter()
        try:
            output = await client.generate(request, writer, timeout_s)
        finally:
            writer.end()
        click.echo(one_line(output.statistics), err=True)
