"""`python -m bench.speed.run_ahead`: what drafting ahead of the verdict brings.

Two drafters at one verifier take turns at the same streams: one drafts ahead, one waits. Models
have random weights, and drafts are accepted at a scripted rate (bench/device/pair/script.py);
passes, messages and their times are real. On one machine the two services must not share a core:
what a drafter does while it would have waited is then taken from the verifier, and the answer is
another.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.device.pair.children import Child, free_address
from bench.device.pair.folders import make_folder
from bench.device.pair.rounds import crowd, prompt_of
from bench.device.pair.script import Script, expected_length
from bench.device.parts.steps import ModelShape
from bench.support import hardware, results, tables
from bench.support.progress import ReportProgress, showing_progress
from bench.support.watching import Scrape, scrape
from client.client import Client, Output
from common.device import native
from common.telemetry.metrics import RUN_AHEAD

# A pass of the target takes some ten steps of the draft.
TARGET = ModelShape("target", 768, 3072, 8, 12, 4, False, 2048)
DRAFT = ModelShape("draft", 384, 1024, 4, 6, 2, True, 2048)
WAYS = ("off", "on")
RATES = (0.6, 0.8, 0.9)
RESULTS = RUN_AHEAD.labels["result"]
PROMPT, START_S = 64, 120.0


@dataclass(frozen=True)
class Row:
    """One way, at one number of streams and one rate."""

    run_ahead: str
    streams: int
    rate: float
    draft_steps: int
    mean_acceptance_length: float
    round_ms: float
    tokens_per_s: float
    outputs: dict[str, float]  # of what was drafted ahead, shares
    equal: bool  # to the target alone's output


def row_of(
    way: tuple[str, int, float, int], runs: list[list[Output]], before: Scrape, after: Scrape,
    alone: list[Output],
) -> Row:  # fmt: skip
    """runs: of the same streams, again and again; their median counts."""
    every = [output.statistics for outputs in runs for output in outputs]
    rounds = sum(each.rounds for each in every)
    seconds = sum(each.total_s - each.time_to_first_token_s for each in every)
    committed = sum(len(output.token_ids) - 1 for outputs in runs for output in outputs)
    rates = [sum(output.statistics.tokens_per_s for output in outputs) for outputs in runs]
    met = {o: after(RUN_AHEAD, result=o) - before(RUN_AHEAD, result=o) for o in RESULTS}
    whole = max(1.0, sum(met.values()))
    same = all(
        one.token_ids == other.token_ids
        for outputs in runs
        for one, other in zip(outputs, alone, strict=False)
    )
    return Row(
        *way,
        mean_acceptance_length=committed / rounds,
        round_ms=seconds / rounds * 1e3,
        tokens_per_s=statistics.median(rates),
        outputs={name: count / whole for name, count in met.items()},
        equal=same,
    )


def shown(rows: list[Row], title: str, caption: str) -> Table:
    headings = [
        "streams",
        "scripted",
        "ahead",
        "accept. len.",
        "expected",
        "round ms",
        "tokens/s",
        "× off",
    ]
    made = tables.table(title, [*headings, *RESULTS, "output equal"], caption)
    for row in rows:
        waiting = next(
            each.tokens_per_s
            for each in rows
            if each.run_ahead == "off" and (each.streams, each.rate) == (row.streams, row.rate)
        )
        shares = [f"{row.outputs[name]:.0%}" if row.run_ahead == "on" else "" for name in RESULTS]
        made.add_row(
            str(row.streams),
            f"{row.rate:g}",
            row.run_ahead,
            f"{row.mean_acceptance_length:.2f}",
            f"{expected_length(row.rate, row.draft_steps):.2f}",
            f"{row.round_ms:.1f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.tokens_per_s / waiting:.2f}",
            *shares,
            "yes" if row.equal else "NO",
        )
    return made


async def measure(
    addresses: dict[str, str],
    metrics: dict[str, str],
    script: Path,
    options: dict[str, Any],
    report_progress: ReportProgress,
) -> list[Row]:
    """Every number of streams at every rate; the ways take turns."""
    rows = []
    steps, new, most = options["draft_steps"], options["output_tokens"], max(options["streams"])
    prompts = [prompt_of(stream, PROMPT) for stream in range(most)]
    async with Client(addresses["off"]) as off, Client(addresses["on"]) as on:
        clients = {"off": off, "on": on}
        alone = await crowd(off, prompts, new, 0)
        for client in clients.values():
            await crowd(client, prompts[:1], 2, steps)  # what is made only once
        truths = [(*p, *o.token_ids) for p, o in zip(prompts, alone, strict=True)]
        plan = [(streams, rate) for streams in options["streams"] for rate in RATES]
        for done, (streams, rate) in enumerate(plan):
            report_progress(f"{streams} streams at {rate:g}", done, len(plan))
            Script.write(script, rate, truths)
            before = {way: await scrape(metrics[way]) for way in WAYS}
            runs: dict[str, list[list[Output]]] = {way: [] for way in WAYS}
            for _ in range(options["turns"]):
                for way in WAYS:
                    runs[way].append(await crowd(clients[way], prompts[:streams], new, steps))
            after = {way: await scrape(metrics[way]) for way in WAYS}
            for way in WAYS:
                key = (way, streams, rate, steps)
                rows.append(row_of(key, runs[way], before[way], after[way], alone))
    return rows


def run(folder: Path, options: dict[str, Any], report_progress: ReportProgress) -> list[Row]:
    """Start all three, measure, end them."""
    script = folder / "script.json"
    most = max(options["streams"])
    shared: dict[str, Any] = {
        "max_context_length": PROMPT + options["output_tokens"] + 32,
        "max_sessions": most + 2,
        "max_batch_tokens": max(128, 2 * most * (options["draft_steps"] + 1)),
        "threads": 1,
    }
    verifier = free_address()
    addresses, metrics = {}, {}
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        target = make_folder(TARGET, folder / "target")
        draft = make_folder(DRAFT, folder / "draft")
        above = Child("verifier", target, "cpu", {**shared, "listen": verifier}, folder)
        started = [stack.enter_context(above)]
        for way in WAYS:
            address, told_at = free_address(), free_address()
            given = {
                "listen": address,
                "metrics_listen": told_at,
                "verifier": verifier,
                "run_ahead": way,
                "lookup": False,
                "script": str(script),
            }
            (own := folder / way).mkdir()
            started.append(stack.enter_context(Child("drafter", draft, "cpu", shared | given, own)))
            addresses[way], metrics[way] = address, f"http://{told_at}/metrics"
        for child, core in zip(started, (cores[0], cores[-1], cores[-1]), strict=True):
            os.sched_setaffinity(child.pid, [core])  # before it has made any thread
        for child in started:
            child.port(START_S)
        return asyncio.run(measure(addresses, metrics, script, options, report_progress))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--streams", type=int, multiple=True, default=(1, 8), show_default=True)
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--output-tokens", type=click.IntRange(2), default=96, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Of each way.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(out: Path | None, **options: Any) -> None:
    """Drafting ahead against waiting, on models of scripted acceptance."""
    native.settle()
    console, machine = tables.console(), hardware.describe()
    with (
        showing_progress(console) as report_progress,
        tempfile.TemporaryDirectory(prefix="crossdraft-ahead-") as made,
    ):
        rows = run(Path(made), options, report_progress)
    caption = (
        f"{hardware.caption(machine)}. Verifier and drafters each on one core, the client on any. "
        "Shares are of verdicts that met something drafted ahead."
    )
    title = f"Drafting ahead of the verdict, {options['draft_steps']} draft steps"
    console.print(shown(rows, title, caption))
    folder = results.folder(out, "ahead")
    results.write(folder / "ahead.json", machine, options, rows=[vars(row) for row in rows])
    console.print(f"[dim]results in {folder}[/dim]")


if __name__ == "__main__":
    main()
