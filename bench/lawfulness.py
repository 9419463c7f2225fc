"""`python -m bench.lawfulness`: do sampled texts follow the target's law? One z-score per rule.

Asks any Generate endpoint (`--address`), or a pair that it starts itself, for sampled text, with
the target alone (k = 0) as control, and has the target read all of it (bench/scoring.py). Within
±3 is as it should be. Knows which settings are asked for. Refuses to know how anything is drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bench import hardware, results, tables
from bench.progress import Tell, telling
from bench.questions import Question, questions
from bench.services import Services
from cli.client import Client, Output, Request
from cli.fetching import fetch
from common import native
from common.sampling import SamplingParams
from common.tokenizer_files import TokenizerFiles
from common.types import AcceptanceRule, BridgeMode

if TYPE_CHECKING:
    from bench.scoring import Sample, Score

LAWS = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9))
CONTEXT = 1024
PROMPTS = 24


@dataclass(frozen=True)
class Way:
    """One way of sampling: which rule, and what drafts; 0 draft steps are the target alone."""

    name: str
    rule: AcceptanceRule | None
    draft_steps: int
    bridge: BridgeMode | None = None
    seeded: bool = False


def ways(draft_steps: int) -> tuple[Way, ...]:
    """The control first, then each rule over the bridge that suits it."""
    return (
        Way("target alone", None, 0),
        Way("rejection", AcceptanceRule.REJECTION, draft_steps, BridgeMode.INTERSECTION),
        Way("coupled", AcceptanceRule.COUPLED, draft_steps, BridgeMode.INTERSECTION, seeded=True),
        Way("no-q, text", AcceptanceRule.NO_Q, draft_steps, BridgeMode.TEXT),
        Way("auto", None, draft_steps, BridgeMode.AUTO),
    )


@dataclass(frozen=True)
class Row:
    """What one way brought under one law."""

    way: Way
    params: SamplingParams
    score: Score
    mean_acceptance_length: float
    wire_bytes_per_token: float


async def sample(
    client: Client,
    asked: Sequence[Question],
    way: Way,
    params: SamplingParams,
    tokens: int,
    max_new_tokens: int,
    streams: int,
    tell: Tell,
) -> tuple[list[Sample], list[Output]]:
    """At least `tokens` tokens of text, the questions in turn, `streams` at a time."""
    from bench.scoring import Sample

    samples: list[Sample] = []
    outputs: list[Output] = []
    count = number = 0

    async def one(number: int) -> None:
        nonlocal count
        question = asked[number % len(asked)]
        seed = number if way.seeded else None
        request = Request(
            max_new_tokens=max_new_tokens,
            messages=question.messages,
            prompt=question.beginning,
            draft_steps=way.draft_steps,
            bridge=way.bridge,
            rule=way.rule,
            sampling=SamplingParams(**{**vars(params), "seed": seed}),
        )
        output = await client.generate(request)
        samples.append(Sample(question.ids, output.token_ids))
        outputs.append(output)
        count += len(output.token_ids)
        tell(f"{way.name}, temperature {params.temperature:g}", count, tokens)

    running: set[asyncio.Task[None]] = set()
    while count < tokens:
        while len(running) < streams and count < tokens:
            running.add(asyncio.create_task(one(number)))
            number += 1
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    # Those that still run are awaited: stopping early would prefer short texts.
    await asyncio.gather(*running)
    return samples, outputs


def shown(rows: Sequence[Row], title: str, caption: str) -> Table:
    headings = ["law", "drawn by", "tokens", "z", "surprise", "entropy", "AL", "bytes/token"]
    made = tables.table(title, headings, caption)
    for row in rows:
        score = row.score
        made.add_row(
            law_name(row.params),
            row.way.name,
            str(score.tokens),
            f"{score.z:+.2f}",
            f"{score.surprise / score.tokens:.4f}",
            f"{score.entropy / score.tokens:.4f}",
            f"{row.mean_acceptance_length:.3f}",
            f"{row.wire_bytes_per_token:.0f}",
        )
    return made


def law_name(params: SamplingParams) -> str:
    """Temperature and filters, as far as set."""
    names = {"temperature": "T", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    given = ((short, getattr(params, name)) for name, short in names.items())
    return ", ".join(f"{short} {value:g}" for short, value in given if value is not None)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option("--address", help="A Generate endpoint that serves them; left out: start a pair.")
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--streams", type=click.IntRange(1), default=16, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(target: str, draft: str, address: str | None, out: Path | None, **options: int) -> None:
    """Sample by every rule, and score the text under the target's law."""
    native.settle()
    console = tables.console()
    machine = hardware.describe()
    target_folder, _ = fetch([target, draft], console)
    folder = results.folder(out, target, draft)
    asked = questions(TokenizerFiles.from_directory(target_folder), PROMPTS)
    plan = [(params, way) for params in LAWS for way in ways(options["draft_steps"])]

    async def draw(tell: Tell) -> list[tuple[list[Sample], list[Output]]]:
        async with AsyncExitStack() as stack:
            if address is None:
                made = Services(target, draft, folder / "logs", console)
                client = (await stack.enter_async_context(made)).clients[0]
            else:
                client = await stack.enter_async_context(Client(address))
            limits = (options["tokens"], options["max_new_tokens"], options["streams"])
            return [await sample(client, asked, way, params, *limits, tell) for params, way in plan]

    with telling(console) as tell:
        drawn = asyncio.run(draw(tell))  # the services are gone before the target is read again
        rows = _scored(target_folder, plan, drawn, tell)
    caption = (
        f"{hardware.caption(machine)}. z: of the sampled tokens' surprise against the law's "
        "entropy; within ±3 is as it should be. Surprise and entropy in nats per token."
    )
    console.print(shown(rows, f"{draft} → {target}, {options['draft_steps']} draft steps", caption))
    settings: dict[str, Any] = {"target": target, "draft": draft, "address": address, **options}
    found = [
        {
            "way": asdict(row.way),
            "law": asdict(row.params),
            "z": row.score.z,
            "score": asdict(row.score),
            "mean_acceptance_length": row.mean_acceptance_length,
            "wire_bytes_per_token": row.wire_bytes_per_token,
        }
        for row in rows
    ]
    results.write(folder / "lawfulness.json", machine, settings, rows=found)
    console.print(f"[dim]results in {folder}[/dim]")


def _scored(
    folder: Path,
    plan: Sequence[tuple[SamplingParams, Way]],
    drawn: Sequence[tuple[list[Sample], list[Output]]],
    tell: Tell,
) -> list[Row]:
    from bench.scoring import Scorer

    scorer = Scorer(folder, CONTEXT)
    rows = []
    for done, ((params, way), (samples, outputs)) in enumerate(zip(plan, drawn, strict=True)):
        tell(f"reading {way.name}, {law_name(params)}", done, len(plan))
        every = [output.statistics for output in outputs]
        rounds = sum(each.rounds for each in every)
        committed = sum(each.mean_acceptance_length * each.rounds for each in every)
        tokens = sum(each.output_tokens for each in every)
        rows.append(
            Row(
                way,
                params,
                scorer.score(samples, params),
                committed / rounds if rounds else 0.0,
                sum(each.wire_bytes for each in every) / tokens,
            )
        )
    return rows


if __name__ == "__main__":
    main()
