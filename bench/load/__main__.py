"""`python -m bench.load`: closed- and open-loop load on a Generate endpoint, or on a pair of tiny
random models that are made and served on the spot.

First a closed loop measures the throughput; then an open loop at a share of that measures how long
it takes. Without --address both services run on this machine, with models so small that the
services around them are what is measured.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click
import psutil
from rich.table import Table

from bench.load.report import PERCENTILES, Report, Spread, report
from bench.load.streams import Load, Mix, run
from bench.support import hardware, picture, results, tables
from bench.support.tiny_services import tiny_services
from common.device import native

WARM_UP = 0.2  # of a load's duration that its rates leave out
SPREADS = {
    "first_token": "first token",
    "between_tokens": "between tokens",
    "between_rounds": "between rounds",
    "per_token": "per output token",
    "whole": "whole stream",
    "outside": "outside the models, per round",
    "outside_without_queues": "and outside the queues",
    "late_start": "late start of the client",
}


class Usage:
    """CPU seconds of the services and of the clients, so far."""

    def __init__(self, services: dict[str, int]) -> None:
        self._services = {name: psutil.Process(pid) for name, pid in services.items()}

    def read(self) -> dict[str, float]:
        found = {}
        for name, process in self._services.items():
            times = process.cpu_times()
            found[name] = times.user + times.system
        own = os.times()
        found["clients"] = own.user + own.system + own.children_user + own.children_system
        return found


def measure(load: Load, processes: int, usage: Usage) -> tuple[Report, dict[str, float]]:
    """One load, and the CPU milliseconds that each process took per round."""
    before, loop = usage.read(), "closed" if load.streams else "open"
    begin, records = run(load, processes)
    after = usage.read()
    found = report(loop, records, begin + WARM_UP * load.duration_s, begin + load.duration_s)
    rounds = max(1, sum(len(record.round_s) for record in records))
    return found, {name: (after[name] - before[name]) * 1e3 / rounds for name in before}


def shown(reports: list[Report], title: str, caption: str) -> Table:
    headings = ["loop", "latency", "count", "mean ms", *(f"p{p}" for p in PERCENTILES), "most"]
    made = tables.table(title, headings, caption)
    for each in reports:
        for field, name in SPREADS.items():
            spread: Spread = getattr(each, field)
            values = (spread.mean, spread.p50, spread.p95, spread.p99, spread.most)
            made.add_row(each.loop, name, str(spread.count), *(f"{v:.2f}" for v in values))
        made.add_section()
    return made


def summary_line(each: Report, cpu_ms: dict[str, float]) -> str:
    """A load's rates in one line, its errors and its CPU time in another."""
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(each.statuses.items()))
    cpu = ", ".join(f"{name} {ms:.3f}" for name, ms in cpu_ms.items())
    return (
        f"{each.loop}: {each.rounds_per_s:.0f} rounds/s, {each.tokens_per_s:.0f} tokens/s, "
        f"{each.streams_per_s:.1f} streams/s, {each.rounds_per_stream:.1f} rounds per stream\n"
        f"  {statuses}; CPU ms per round: {cpu}"
    )


def sample(path: Path, reports: list[Report], title: str, footnote: str) -> None:
    """Percentiles of what a client waits for, and of what the services add to the models."""
    names = ("first_token", "between_rounds", "outside")
    lines = {
        f"{SPREADS[name]}, {each.loop}": [
            (p, getattr(getattr(each, name), f"p{p}")) for p in PERCENTILES
        ]
        for each in reports
        for name in names
        if getattr(each, name).count
    }
    picture.write(path, title, ("percentile", "ms"), lines, footnote=footnote)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--address", help="A Generate endpoint; left out: a pair of tiny models, made here.")
@click.option("--streams", type=click.IntRange(1), default=64, show_default=True, help="At a time.")
@click.option("--duration", type=click.FloatRange(1), default=20.0, show_default=True, help="Each.")
@click.option("--rate", type=float, help="Streams per second in open loop, instead of a share.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.2, show_default=True)
@click.option("--loop", type=click.Choice(["both", "closed", "open"]), default="both")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Clients.")
@click.option("--prompt-words", type=(int, int), default=(4, 120), show_default=True)
@click.option("--output-tokens", type=(int, int), default=(16, 96), show_default=True)
@click.option("--draft-steps", type=click.IntRange(0), help="Left out: the drafter's setting.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Of each tiny model.")
@click.option("--drafter-option", multiple=True, help="Passed to the tiny pair's drafter.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    address: str | None,
    streams: int,
    duration: float,
    rate: float | None,
    share: float,
    loop: str,
    processes: int,
    prompt_words: tuple[int, int],
    output_tokens: tuple[int, int],
    draft_steps: int | None,
    seed: int,
    threads: int,
    drafter_option: tuple[str, ...],
    out: Path | None,
) -> None:
    """How much a Generate endpoint gets through, and how long a share of that takes."""
    if loop == "open" and rate is None:
        raise click.UsageError("an open loop by itself needs --rate")
    settings = dict(click.get_current_context().params)
    native.settle()
    console, machine = tables.console(), hardware.describe()
    mix = Mix(prompt_words, output_tokens, draft_steps, seed=seed)
    found: list[tuple[Report, dict[str, float]]] = []
    with ExitStack() as stack:
        services: dict[str, int] = {}
        if address is None:
            tiny = tiny_services(console, streams, threads, drafter_options=drafter_option)
            made = stack.enter_context(tiny)
            address, services = made.address, made.pids
        usage = Usage(services)
        run(Load(address, 2.0, mix, streams), 1)  # pays for what is made only once
        if loop != "open":
            found.append(measure(Load(address, duration, mix, streams), processes, usage))
            console.print(summary_line(*found[-1]))
        if loop != "closed":
            per_s = rate if rate is not None else share * found[-1][0].streams_per_s
            found.append(measure(Load(address, duration, mix, per_s=per_s), processes, usage))
            console.print(summary_line(*found[-1]))
    folder = results.folder(out, "load")
    reports = [each for each, _ in found]
    title = f"{streams} streams, {duration:g} s"
    caption = f"{hardware.caption(machine)}; load average before: {machine['load_at_start']}"
    console.print(shown(reports, title, caption))
    parts = [{**asdict(each), "cpu_ms_per_round": cpu} for each, cpu in found]
    results.write(folder / "load.json", machine, settings, loads=parts)
    sample(folder / "load.png", reports, title, caption)
    console.print(f"[dim]results in {folder}[/dim]")


if __name__ == "__main__":
    main()
