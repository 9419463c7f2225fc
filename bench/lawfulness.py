"""`python -m bench.lawfulness`: sampled text by every rule, side by side: is it lawful, what is AL?

Asks any Generate endpoint (`--address`), or pairs that it starts itself, for sampled text, with
the target alone (k = 0) as control, and has the target read all of it (bench/scoring.py). z within
±3 is as it should be. Knows laws, pairs and tables. Refuses to know how anything is drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from bench import hardware, results, tables
from bench.progress import Tell, telling
from bench.questions import questions
from bench.sampled_ways import Drawn, Way, draw, ways
from bench.services import Services
from cli.client import Client
from cli.fetching import fetch
from common import native
from common.sampling import SamplingParams
from common.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from bench.scoring import Score

LAWS = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9))
CONTEXT = 1024
PROMPTS = 24
PAIRS = (  # draft, target
    ("smollm2-135m", "qwen2.5-coder-1.5b"),
    ("smollm2-135m", "gemma-3-270m"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"),
)


@dataclass(frozen=True)
class Row:
    """What one way brought under one law."""

    way: Way
    params: SamplingParams
    score: Score
    mean_acceptance_length: float
    acceptance_by_position: tuple[float, ...]
    wire_bytes_per_token: float
    wire_bytes_per_position: float | None  # drafted; None: none was

    @property
    def as_json(self) -> dict[str, Any]:
        given = {k: v for k, v in vars(self).items() if k not in ("way", "params", "score")}
        head = {"way": asdict(self.way), "law": asdict(self.params), "z": self.score.z}
        return {**head, "score": asdict(self.score), **given}


def row_of(way: Way, params: SamplingParams, score: Score, drawn: Drawn, alone: Drawn) -> Row:
    """alone: what the control brought under the same law."""
    return Row(
        way,
        params,
        score,
        drawn.mean_acceptance_length,
        drawn.acceptance_by_position,
        drawn.bytes_per_token,
        drawn.bytes_per_position(alone),
    )


def shown(rows: Sequence[Row], title: str, caption: str) -> Table:
    positions = max(min(3, len(row.acceptance_by_position)) for row in rows)
    accepted = [f"acc. {place + 1}" for place in range(positions)]
    headings = ["law", "drawn by", "k", "tokens", "z", "surprise", "entropy", "AL", *accepted]
    made = tables.table(title, [*headings, "bytes/token", "bytes/position"], caption)
    for row in rows:
        score, shares = row.score, row.acceptance_by_position[:positions]
        added = row.wire_bytes_per_position
        made.add_row(
            law_name(row.params),
            row.way.name,
            str(row.way.draft_steps),
            str(score.tokens),
            f"{score.z:+.2f}",
            f"{score.surprise / score.tokens:.4f}",
            f"{score.entropy / score.tokens:.4f}",
            f"{row.mean_acceptance_length:.3f}",
            *[f"{share:.0%}" for share in shares],
            *[""] * (positions - len(shares)),
            f"{row.wire_bytes_per_token:.0f}",
            "" if added is None else f"{added:.1f}",
        )
    return made


def side_by_side(found: dict[str, list[Row]]) -> Table:
    """AL of every way, a line for each pair and law."""
    names = list(dict.fromkeys(row.way.name for rows in found.values() for row in rows))
    made = tables.table("AL by rule", ["pair", "law", *names])
    for pair, rows in found.items():
        for law in dict.fromkeys(law_name(row.params) for row in rows):
            own = {row.way.name: row for row in rows if law_name(row.params) == law}
            made.add_row(pair, law, *(f"{own[n].mean_acceptance_length:.3f}" for n in names))
    return made


def law_name(params: SamplingParams) -> str:
    """Temperature and filters, as far as set."""
    names = {"temperature": "T", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    given = ((short, getattr(params, name)) for name, short in names.items())
    return ", ".join(f"{short} {value:g}" for short, value in given if value is not None)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option(
    "--pair",
    "pairs",
    nargs=2,
    multiple=True,
    metavar="DRAFT TARGET",
    help="Instead of --draft and --target; may be given again, one pair after the other.",
)
@click.option("--all-pairs", is_flag=True, help="The three pairs of the presets.")
@click.option("--address", help="A Generate endpoint that serves them; left out: start a pair.")
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--streams", type=click.IntRange(1), default=16, show_default=True)
@click.option(
    "--lookup/--no-lookup",
    default=True,
    show_default=True,
    help="Whether a pair that is started drafts by prompt lookup, too.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str,
    draft: str,
    pairs: tuple[tuple[str, str], ...],
    all_pairs: bool,
    address: str | None,
    lookup: bool,
    out: Path | None,
    **options: int,
) -> None:
    """Sample by every rule, and score the text under the target's law."""
    native.settle()
    pairs = PAIRS if all_pairs else pairs or ((draft, target),)
    if address is not None and len(pairs) > 1:
        raise click.UsageError("--address serves one pair; give one")
    console = tables.console()
    machine = hardware.describe()
    found: dict[str, list[Row]] = {}
    for draft, target in pairs:
        own = out
        if out is not None and len(pairs) > 1:
            own = out / f"{Path(draft).name}-to-{Path(target).name}"
        folder = results.folder(own, target, draft)
        rows = _run(draft, target, address, lookup, folder, options, console)
        caption = (
            f"{hardware.caption(machine)}. z: of the sampled tokens' surprise against the law's "
            "entropy; within ±3 is as it should be. Surprise and entropy in nats per token. "
            "bytes/token: all between the services. bytes/position: what a drafted position adds "
            "to a round of the target alone."
        )
        title = (
            f"{draft} → {target}, {options['draft_steps']} draft steps"
            + ", no prompt lookup" * (not lookup)
        )
        console.print(shown(rows, title, caption))
        settings = {"target": target, "draft": draft, "address": address, "lookup": lookup}
        told = [row.as_json for row in rows]
        results.write(folder / "lawfulness.json", machine, settings | options, rows=told)
        console.print(f"[dim]results in {folder}[/dim]")
        found[f"{draft} → {target}"] = rows
    if len(found) > 1:
        console.print(side_by_side(found))


def _run(
    draft: str,
    target: str,
    address: str | None,
    lookup: bool,
    folder: Path,
    options: dict[str, int],
    console: Console,
) -> list[Row]:
    """Every way under every law; the services are gone before the target is read again."""
    target_folder, _ = fetch([target, draft], console)
    asked = questions(TokenizerFiles.from_directory(target_folder), PROMPTS)
    plan = [(params, way) for params in LAWS for way in ways(options["draft_steps"])]

    async def drawn(tell: Tell) -> list[Drawn]:
        async with AsyncExitStack() as stack:
            if address is None:
                made = Services(target, draft, folder / "logs", console, not lookup)
                client = (await stack.enter_async_context(made)).clients[-1]
            else:
                client = await stack.enter_async_context(Client(address))
            limits = (options["tokens"], options["max_new_tokens"], options["streams"])
            return [await draw(client, asked, way, params, *limits, tell) for params, way in plan]

    with telling(console) as tell:
        return _scored(target_folder, plan, asyncio.run(drawn(tell)), options["tokens"], tell)


def _scored(
    folder: Path,
    plan: Sequence[tuple[SamplingParams, Way]],
    drawn: Sequence[Drawn],
    tokens: int,
    tell: Tell,
) -> list[Row]:
    from bench.scoring import Sample, Scorer

    scorer = Scorer(folder, CONTEXT)
    rows = []
    for done, ((params, way), made) in enumerate(zip(plan, drawn, strict=True)):
        tell(f"reading {way.name}, {law_name(params)}", done, len(plan))
        samples = [Sample(q.ids, output.token_ids) for q, output in made.first(tokens)]
        score = scorer.score(samples, params)
        controls = zip(plan, drawn, strict=True)
        alone = next(each for (law, w), each in controls if law == params and not w.draft_steps)
        rows.append(row_of(way, params, score, made, alone))
    return rows


if __name__ == "__main__":
    main()
