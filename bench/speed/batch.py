"""`python -m bench.speed.batch`: many streams at once, with drafts and without.

Aggregate tokens/s is counted while all streams run (from the last first token to the first end), so
that prefill and stragglers are left out, as they are at one stream. Every stream has its own prompt
and goes on past its end-of-text, so that all are equally long.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.speed.measures import Run, Summary, summarise
from bench.support import hardware, picture, results, tables
from bench.support.progress import ReportProgress, showing_progress
from bench.support.services import Services, run_of
from bench.support.target_prompts import TargetPrompt, target_prompts
from cli.fetching import fetch
from client.client import Output, TokenDelta
from common.types import BridgeMode

STREAMS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Crowd:
    """Some streams that ran at once."""

    streams: int
    draft_steps: int
    tokens_per_s: float  # of all streams together, while all of them ran
    whole_tokens_per_s: float  # from the first request to the last end, prefill included
    stream_tokens_per_s: tuple[float, ...]  # each stream's own, after its first token
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Row:
    """All repeats of one number of streams at one k: medians of speeds, sums of the rest."""

    streams: int
    tokens_per_s: float
    whole_tokens_per_s: float
    per_stream: float
    slowest_stream: float
    ratio: float  # to one stream at k = 0
    rounds: Summary


async def crowd(
    services: Services, asked: list[TargetPrompt], max_new_tokens: int, steps: int, mode: BridgeMode
) -> Crowd:
    """All of `asked` at once."""
    began = time.monotonic()
    times: list[list[float]] = [[] for _ in asked]  # of each token, by stream

    async def one(stream: int, target_prompt: TargetPrompt) -> Output:
        def delta(_: TokenDelta) -> None:
            times[stream].append(time.monotonic())

        request = target_prompt.request(max_new_tokens, steps, mode, ignore_eos=True)
        return await services.clients[0].generate(request, delta)

    outputs = await asyncio.gather(
        *(one(i, target_prompt) for i, target_prompt in enumerate(asked))
    )
    runs = tuple(
        run_of(mode.value if steps else "target alone", steps, target_prompt, output)
        for target_prompt, output in zip(asked, outputs, strict=True)
    )
    count = sum(len(run.token_ids) for run in runs)
    return Crowd(
        streams=len(asked),
        draft_steps=steps,
        tokens_per_s=steady_rate(times),
        whole_tokens_per_s=count / (max(each[-1] for each in times) - began),
        stream_tokens_per_s=tuple(run.committed / run.round_s for run in runs),
        runs=runs,
    )


def steady_rate(times: list[list[float]]) -> float:
    """Tokens per second in (last first token, first end]; 0 if the streams never ran together."""
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    if end <= begin:
        return 0.0
    return sum(begin < at <= end for each in times for at in each) / (end - begin)


def rows(crowds: list[Crowd]) -> list[Row]:
    """By number of streams and k."""
    groups: dict[tuple[int, int], list[Crowd]] = defaultdict(list)
    for each in crowds:
        groups[each.streams, each.draft_steps].append(each)
    speeds = {
        key: statistics.median(c.tokens_per_s for c in group) for key, group in groups.items()
    }
    base = speeds[min(key for key in speeds if key[1] == 0)]
    found = []
    for (streams, steps), group in sorted(groups.items(), key=lambda item: item[0][::-1]):
        speed = speeds[streams, steps]
        found.append(
            Row(
                streams=streams,
                tokens_per_s=speed,
                whole_tokens_per_s=statistics.median(c.whole_tokens_per_s for c in group),
                per_stream=speed / streams,
                slowest_stream=min(min(c.stream_tokens_per_s) for c in group),
                ratio=speed / base,
                rounds=summarise([run for c in group for run in c.runs]),
            )
        )
    return found


async def measure(
    services: Services, counts: list[int], options: dict[str, Any], report_progress: ReportProgress
) -> list[Crowd]:
    """Every number of streams, with and without drafts by turns, again and again."""
    tokens, mode = options["max_new_tokens"], BridgeMode(options["bridge"])
    asked = target_prompts(services.files, max(counts))
    for steps in (0, options["draft_steps"]):
        await crowd(services, asked[:1], 8, steps, mode)  # pays for what is made only once
    found = []
    plan = [
        (n, k)
        for _ in range(options["repeats"])
        for n in counts
        for k in (0, options["draft_steps"])
    ]
    for done, (streams, steps) in enumerate(plan):
        report_progress(f"{streams} streams, k = {steps}", done, len(plan))
        found.append(await crowd(services, asked[:streams], tokens, steps, mode))
    return found


def shown(found: list[Row], title: str, caption: str) -> Table:
    headings = ["streams", "k", "accept. len.", "tokens/s", "× one alone", "per stream", "slowest"]
    made = tables.table(
        title, [*headings, "with prefill", "ms per round", "models", "queues", "outside"], caption
    )
    for row in found:
        made.add_row(
            str(row.streams),
            str(row.rounds.draft_steps),
            f"{row.rounds.mean_acceptance_length:.2f}",
            f"{row.tokens_per_s:.2f}",
            tables.times(row.ratio),
            f"{row.per_stream:.2f}",
            f"{row.slowest_stream:.2f}",
            f"{row.whole_tokens_per_s:.2f}",
            f"{row.rounds.round_ms:.0f}",
            f"{row.rounds.model_share:.1%}",
            f"{row.rounds.queue_share:.1%}",
            f"{row.rounds.outside_share:.1%}",
        )
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option(
    "--bridge", type=click.Choice([m.value for m in BridgeMode]), default="auto", show_default=True
)
@click.option("--max-new-tokens", type=click.IntRange(4), default=48, show_default=True)
@click.option("--streams", type=click.IntRange(1, 24), multiple=True, default=STREAMS)
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str, draft: str, streams: tuple[int, ...], out: Path | None, **options: Any
) -> None:
    """Aggregate and per-stream speed at 1, 2, 4, 8 and 16 streams."""
    console = tables.console()
    machine = hardware.describe()
    fetch([target, draft], console)
    folder = results.folder(out, target, draft)

    async def run(report_progress: ReportProgress) -> list[Crowd]:
        async with Services(target, draft, folder / "logs", console) as services:
            return await measure(services, sorted(streams), options, report_progress)

    with showing_progress(console) as report_progress:
        crowds = asyncio.run(run(report_progress))
    found = rows(crowds)
    caption = (
        f"{hardware.caption(machine)}. tokens/s: of all streams, while all of them run. queues: "
        "mostly other streams' passes."
    )
    console.print(shown(found, f"{draft} → {target}, bridge {options['bridge']}", caption))
    settings = {"target": target, "draft": draft, "streams": streams, **options}
    results.write(
        folder / "batch.json",
        machine,
        settings,
        rows=[asdict(row) for row in found],
        crowds=[asdict(each) for each in crowds],
    )
    lines = {
        f"k = {k}" if k else "target alone": [
            (row.streams, row.tokens_per_s) for row in found if row.rounds.draft_steps == k
        ]
        for k in (options["draft_steps"], 0)
    }
    picture.write(
        folder / "batch.png",
        f"{draft} → {target}",
        ("concurrent streams", "tokens/s of all streams together"),
        lines,
        footnote=hardware.caption(machine),
        doubling=True,
    )
    console.print(f"[dim]results in {folder}[/dim]")


if __name__ == "__main__":
    main()
