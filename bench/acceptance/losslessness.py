"""`python -m bench.acceptance.losslessness`: sampled text by every rule, side by side.

Asks any Generate endpoint (`--address`), or pairs that it starts itself, for sampled text, with the
target alone (k = 0) as control, and has the target read all of it (bench/acceptance/scoring.py). z
within ±3 is as it should be. Knows distributions and pairs. Does not know how anything is
sampled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.acceptance.losslessness_tables import Row, distribution_name, row_of, shown, side_by_side
from bench.acceptance.sampled_ways import Sampled, Way, sample, ways
from bench.support import hardware, results, tables
from bench.support.progress import ReportProgress, showing_progress
from bench.support.services import Services
from bench.support.target_prompts import target_prompts
from cli.fetching import fetch
from client.client import Client
from common.device import native
from common.sampling.parameters import SamplingParams
from common.vocabulary.files import TokenizerFiles

DISTRIBUTIONS = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9))
CONTEXT = 1024
PROMPTS = 24
CONTROL, *_ = NAMES = tuple(way.name for way in ways(1))
PAIRS = (  # draft, target
    ("smollm2-135m", "qwen2.5-coder-1.5b"),
    ("smollm2-135m", "gemma-3-270m"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"),
)


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
@click.option(
    "--way",
    "names",
    multiple=True,
    type=click.Choice(NAMES),
    default=NAMES,
    help="By default all; may be given again. The target alone, the control, is always there.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str,
    draft: str,
    pairs: tuple[tuple[str, str], ...],
    all_pairs: bool,
    address: str | None,
    lookup: bool,
    names: tuple[str, ...],
    out: Path | None,
    **options: int,
) -> None:
    """Sample by every rule, and score the text under the target's distribution."""
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
        rows = _run(draft, target, address, lookup, names, folder, options, console)
        caption = (
            f"{hardware.caption(machine)}. z: surprise of the tokens against the distribution's "
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
        reported = [row.as_json for row in rows]
        results.write(folder / "losslessness.json", machine, settings | options, rows=reported)
        console.print(f"[dim]results in {folder}[/dim]")
        found[f"{draft} → {target}"] = rows
    if len(found) > 1:
        console.print(side_by_side(found))


def _run(
    draft: str,
    target: str,
    address: str | None,
    lookup: bool,
    names: Sequence[str],
    folder: Path,
    options: dict[str, int],
    console: Console,
) -> list[Row]:
    """Every way under every distribution; the services are gone before the target is read again.

    What was sampled is kept in the folder, so that a run that was cut off goes on from there.
    """
    target_folder, _ = fetch([target, draft], console)
    asked = target_prompts(TokenizerFiles.from_directory(target_folder), PROMPTS)
    chosen = [way for way in ways(options["draft_steps"]) if way.name in (*names, CONTROL)]
    plan = [(params, way) for params in DISTRIBUTIONS for way in chosen]
    head = {"draft": draft, "target": target, "lookup": lookup, "commit": results.commit()}

    def kept(params: SamplingParams, way: Way) -> tuple[Path, dict[str, Any]]:
        name = re.sub(r"\W+", "-", f"{way.name} {distribution_name(params)}")
        key = head | options | {"distribution": asdict(params), "way": asdict(way)}
        return folder / f"sampled-{name}.json", key

    missing = [each for each in plan if address or Sampled.load(*kept(*each)) is None]

    async def sampled(report_progress: ReportProgress) -> None:
        async with AsyncExitStack() as stack:
            if address is None:
                made = Services(target, draft, folder / "logs", console, not lookup)
                client = (await stack.enter_async_context(made)).clients[-1]
            else:
                client = await stack.enter_async_context(Client(address))
            limits = (options["tokens"], options["max_new_tokens"], options["streams"])
            for params, way in missing:
                said = await sample(client, asked, way, params, *limits, report_progress)
                said.save(*kept(params, way))

    if len(missing) < len(plan):
        console.print(f"{len(plan) - len(missing)} of {len(plan)} were sampled before: {folder}")
    with showing_progress(console) as report_progress:
        if missing:
            asyncio.run(sampled(report_progress))
        every = [said for each in plan if (said := Sampled.load(*kept(*each)))]
        return _scored(target_folder, plan, every, options["tokens"], report_progress)


def _scored(
    folder: Path,
    plan: Sequence[tuple[SamplingParams, Way]],
    sampled: Sequence[Sampled],
    tokens: int,
    report_progress: ReportProgress,
) -> list[Row]:
    from bench.acceptance.scoring import Sample, Scorer

    scorer = Scorer(folder, CONTEXT)
    rows = []
    for done, ((params, way), made) in enumerate(zip(plan, sampled, strict=True)):
        report_progress(f"reading {way.name}, {distribution_name(params)}", done, len(plan))
        samples = [Sample(each.prompt, each.output) for each in made.first(tokens)]
        score = scorer.score(samples, params)
        controls = zip(plan, sampled, strict=True)
        alone = next(
            each
            for (distribution, w), each in controls
            if distribution == params and not w.draft_steps
        )
        rows.append(row_of(way, params, score, made, alone))
    return rows


if __name__ == "__main__":
    main()
