"""`crossdraft demo`: fetch two models, start both services, answer with and without drafts.

Knows the order of things. Does not know how models are fetched (cli/fetching.py), processes
kept (cli/children.py) and requests made (client/client.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import grpc
from rich.console import Console
from rich.rule import Rule
from rich.status import Status

from cli.children import Child, free_addresses
from cli.comparison import comparison
from cli.fetching import fetch
from cli.options.text import Text
from cli.screenshot import save
from client.client import Client, Output, Request
from client.results import TokenDelta
from client.streaming import LEGEND, DeltaWriter, rpc_line
from common.settings.numbers import MAX_COUNT, Number
from common.types import BridgeMode
from common.weights.resolve import cache_folder

PROMPT = "Write a small Python function that returns the n-th Fibonacci number, with a docstring."
START_S = 300.0
MAX_STEPS = 16
DRAFTING = {"int8": "int8", "exact": "fp16"}  # how the draft model multiplies beside such a target
ARITHMETIC = {"int8": "weights in 8 bits", "exact": "float32"}
SAME = "Both outputs are the same, token by token."


@click.command("demo")
@click.argument("prompt", type=Text(), default=PROMPT)
@click.option(
    "--target",
    type=Text(),
    default="qwen2.5-coder-1.5b",
    show_default=True,
    help="The large model.",
)
@click.option(
    "--draft", type=Text(), default="smollm2-135m", show_default=True, help="The small model."
)
@click.option(
    "--max-new-tokens",
    type=Number(int, 1, MAX_COUNT),
    default=96,
    show_default=True,
    help="Length.",
)
@click.option(
    "--draft-steps",
    type=Number(int, 1, MAX_STEPS),
    default=3,
    show_default=True,
    help="Draft steps per round.",
)
@click.option(
    "--bridge",
    type=click.Choice([mode.value for mode in BridgeMode]),
    default="auto",
    show_default=True,
    help="How drafts cross between the vocabularies.",
)
@click.option(
    "--linear",
    type=click.Choice(list(DRAFTING)),
    default="int8",
    show_default=True,
    help="How weights multiply: rounded to 8 bits, or exactly as in float32.",
)
@click.option(
    "--chat/--no-chat", default=True, help="PROMPT is a message, or text to continue.", is_flag=True
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also draw the answer into FILE."
)
def demo(
    prompt: str,
    target: str,
    draft: str,
    max_new_tokens: int,
    draft_steps: int,
    bridge: str,
    linear: str,
    chat: bool,
    svg: Path | None,
) -> None:
    """Answer PROMPT with two models on this machine, then with the large one alone.

    The first run downloads and converts both models. Both services run as processes of their own on
    loopback, and end with the demo.
    """
    console = Console(highlight=False)
    target_folder, draft_folder = fetch([target, draft], console)
    request = Request(
        max_new_tokens=max_new_tokens,
        prompt=None if chat else prompt,
        messages=(("user", prompt),) if chat else None,
        draft_steps=draft_steps,
        bridge=BridgeMode(bridge),
    )
    verifier_address, drafter_address = free_addresses(2)
    steps = str(MAX_STEPS)
    # A name rather than a folder where both will do: it is what the services then call their model.
    verifier = ["verifier", "--model", target, "--max-draft-tokens", steps, "--reflection"]
    verifier += ["--linear", linear]
    drafter = ["drafter", "--model", draft, "--verifier", verifier_address]
    drafter += ["--verifier-timeout-s", str(START_S), "--max-draft-steps", steps]
    drafter += ["--reflection", "--linear", DRAFTING[linear]]
    logs = cache_folder() / "logs"
    console.print(f"[dim]models {target_folder} and {draft_folder}; logs in {logs}[/dim]")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the children
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(verifier, verifier_address, logs / "demo-verifier.log")),
            stack.enter_context(Child(drafter, drafter_address, logs / "demo-drafter.log")),
        ]
        try:
            answer = asyncio.run(_run(console, children, request, ARITHMETIC[linear]))
            held = ", ".join(f"{each.name} {each.memory_bytes() / 1e9:.1f} GB" for each in children)
        except grpc.aio.AioRpcError as error:
            for child in children:
                child.check_alive()
            raise click.ClickException(f"{rpc_line(error)}; the logs in {logs} say more") from error
    table = comparison(answer.drafted, answer.alone)
    console.print(table)
    if answer.drafted.token_ids != answer.alone.token_ids:
        console.print("[bold red]The two outputs differ; they must not.[/bold red]")
        sys.exit(1)
    console.print(SAME)
    console.print(f"[dim]in memory: {held}[/dim]")
    if svg is not None:
        save(svg, answer.title, answer.deltas, [table, SAME])


@dataclass(frozen=True)
class Answer:
    """The same request with drafts and without."""

    title: str
    drafted: Output
    deltas: list[TokenDelta]  # of `drafted`
    alone: Output


async def _run(
    console: Console, children: list[Child], request: Request, arithmetic: str
) -> Answer:
    for child in children:
        with console.status("") as status:

            def waiting(seconds: float, name: str = child.name, status: Status = status) -> None:
                status.update(f"the {name} loads its model: {seconds:.0f} s")

            await child.wait_serving(START_S, waiting)
    async with Client(children[-1].address) as client:
        pair = await client.pair()
        # The first request pays for what is made only once; neither run shall.
        await client.generate(dataclasses.replace(request, max_new_tokens=2))
        alone_request = dataclasses.replace(request, draft_steps=0)
        title = (
            f"{pair.draft_model} → {pair.target_model}, bridge {pair.bridge}: "
            f"{request.draft_steps} draft steps per round, {arithmetic}"
        )
        console.print(Rule(LEGEND.copy()))
        console.print(f"[dim]{title}[/dim]\n")
        drafted, deltas = await _stream(client, request)
        console.print(Rule("the same, target alone"))
        alone, _ = await _stream(client, alone_request)
        return Answer(title, drafted, deltas, alone)


async def _stream(client: Client, request: Request) -> tuple[Output, list[TokenDelta]]:
    writer = DeltaWriter()
    deltas: list[TokenDelta] = []

    def receive(delta: TokenDelta) -> None:
        deltas.append(delta)
        writer(delta)

    try:
        return await client.generate(request, receive), deltas
    finally:
        writer.end()
