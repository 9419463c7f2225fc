"""`python -m bench.load.overload`: several times as many clients as places, on a pair
of tiny random models that are made and served on the spot.

First as many clients as places, then four times as many, which come again when they were asked to:
whether those that are let in keep their pace, and how the others are turned away. The exit status
is 1 if a promise was broken (bench/load/overload_report.py); pace and memory are reported, not
judged.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.load.overload_clients import asking, undisturbed
from bench.load.overload_report import Memory, Phase, broken, ratio
from bench.load.streams import Mix
from bench.support import hardware, results, tables
from bench.support.tiny_services import TinyServices, tiny_services
from bench.support.watching import pages_left, taken
from client.client import Client
from common.device import native

REQUESTS = 32  # different ones, asked by turns
WARM_UP_S = 2.0  # at capacity, before anything is measured
SETTLE_S = 10.0  # for what the last streams held to be given back
Points = dict[str, list[tuple[float, float]]]  # service -> (seconds, MiB)


async def watch(pids: Mapping[str, int], every_s: float, points: Points) -> None:
    """Until cancelled."""
    while True:
        for name, pid in pids.items():
            points.setdefault(name, []).append((time.monotonic(), taken(pid).rss_mib))
        await asyncio.sleep(every_s)


async def measure(
    services: TinyServices, mix: Mix, clients: tuple[int, int], seconds: tuple[float, float]
) -> tuple[list[Phase], Points, dict[str, int]]:
    """(both phases, memory during the second, pages in use at the end)"""
    requests = list(itertools.islice(mix.requests(0), REQUESTS))
    phases, points = list[Phase](), Points()
    async with Client(services.address) as client:
        expected = await undisturbed(client, requests)
        await asking(client, requests, expected, clients[0], WARM_UP_S)
        for name, count, duration in zip(
            ("at capacity", "overload"), clients, seconds, strict=True
        ):
            watching = asyncio.create_task(watch(services.pids, 1.0, points))
            attempts = await asking(client, requests, expected, count, duration)
            watching.cancel()
            if not phases:
                points.clear()
            phases.append(Phase.of(name, count, attempts))
    urls = {each.name: each.metrics for each in services.all}
    return phases, points, await pages_left(urls, SETTLE_S)


def shown(phases: list[Phase], title: str, caption: str) -> Table:
    headings = ["", "clients", "streams", "tokens/s of each: p5", "p50", "p95"]
    headings += ["refused", "in ms: p50", "p99", "no hint", "failed", "changed"]
    made = tables.table(title, headings, caption)
    for each in phases:
        pace, refusals = each.pace, each.refusals
        values = [each.clients, pace.streams]
        speeds = [f"{value:.1f}" for value in (pace.p5, pace.p50, pace.p95)]
        times = [f"{value:.1f}" if refusals.count else "" for value in (refusals.p50, refusals.p99)]
        ends = [each.without_hint, each.failed, each.changed]
        made.add_row(
            each.name, *map(str, values), *speeds, str(refusals.count), *times, *map(str, ends)
        )
    kept = ratio(phases[1], phases[0])
    made.add_section()
    made.add_row("overload, × at capacity", "", "", *(f"{kept[p]:.2f}" for p in kept), *[""] * 6)
    return made


def report_progress(
    console: Console, memory: dict[str, Memory], phases: list[Phase], pages: Any
) -> None:
    for name, each in memory.items():
        console.print(
            f"memory of the {name} during the overload: {each.first_mib:.0f} to "
            f"{each.last_mib:.0f} MiB, at most {each.most_mib:.0f}; {each.mib_per_minute:+.2f} "
            "MiB a minute after the first fifth"
        )
    for phase in phases:
        console.print(f"{phase.name}: {phase.statuses}")
    console.print(f"pages in use at the end: {pages}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sessions", type=click.IntRange(1), default=16, show_default=True, help="Places.")
@click.option("--times", type=click.IntRange(2), default=4, show_default=True, help="As many.")
@click.option("--alone", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds.")
@click.option("--overload", type=click.FloatRange(1), default=120.0, show_default=True)
@click.option("--full", type=click.Choice(["drafter", "verifier"]), default="drafter")
@click.option("--prompt-words", type=(int, int), default=(4, 40), show_default=True)
@click.option("--output-tokens", type=(int, int), default=(32, 128), show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Of each tiny model.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    sessions: int,
    times: int,
    alone: float,
    overload: float,
    full: str,
    prompt_words: tuple[int, int],
    output_tokens: tuple[int, int],
    seed: int,
    threads: int,
    out: Path | None,
) -> None:
    """Whether admitted streams keep their pace under overload, and how others are refused."""
    settings = dict(click.get_current_context().params)
    native.settle()
    console, machine = tables.console(), hardware.describe()
    clients = sessions, sessions * times
    # What refuses is the number of places, not that of one client's address; and of two services
    # the one that is asked for.
    wide = ["--max-streams-per-peer", str(2 * clients[1])]
    roomy = ["--max-sessions", str(clients[1])]
    with tiny_services(
        console,
        sessions,
        threads,
        verifier_options=wide + (roomy if full == "drafter" else []),
        drafter_options=wide + (roomy if full == "verifier" else []),
    ) as services:
        mix = Mix(prompt_words, output_tokens, seed=seed)
        found = measure(services, mix, clients, (alone, overload))
        phases, points, pages = asyncio.run(found)
    memory = {name: Memory.of(each) for name, each in points.items()}
    title = f"{sessions} places at the {full}, {times} times as many clients for {overload:g} s"
    caption = f"{hardware.caption(machine)}; load average before: {machine['load_at_start']}"
    console.print(shown(phases, title, caption))
    report_progress(console, memory, phases, pages)
    faults = broken(phases, pages)
    folder = results.folder(out, "overload")
    results.write(
        folder / "overload.json",
        machine,
        settings,
        phases=[asdict(each) for each in phases],
        pace_ratio=ratio(phases[1], phases[0]),
        memory={name: asdict(each) for name, each in memory.items()},
        memory_points=points,
        pages=pages,
        broken=faults,
    )
    console.print(f"[dim]results in {folder}[/dim]")
    console.print("\n".join(faults) or "every promise held")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
