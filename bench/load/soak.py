"""`python -m bench.load.soak`: mixed requests and cancels for as long as asked, and whether
anything grows: mean acceptance length, memory, descriptors, pages.

Without --address on a pair of tiny random models that are made and served on the spot; with it, on
any drafter, whose processes and metrics are named by --watch and --metrics. Knows requests,
processes by their ids, services by their metrics. Does not know what is flat
(bench/load/soak_verdicts.py). The exit status is 1 if something isn't.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import grpc
from rich.console import Console
from rich.table import Table

from bench.load.soak_verdicts import Interval, Verdict, acceptance, verdicts
from bench.support import hardware, results, tables
from bench.support.prompts import PROMPTS
from bench.support.tiny_services import tiny_services
from bench.support.watching import pages_in_use, pages_left, taken
from client.client import Client, Request
from common.device import native
from common.errors import IncompleteStream
from common.sampling.parameters import SamplingParams

GIVEN_UP = 0.2  # of the requests: half by a deadline, half by the client's going away
AGAIN_S = 0.2  # what a client waits that was refused
SETTLE_S = 10.0  # for what the last streams held to be given back
THIRDS = 3
BEFORE = "Minutes before those, of the same requests, which aren't judged."


@dataclass(frozen=True)
class Watched:
    """What is looked at: process ids and metrics' addresses, by name."""

    address: str
    pids: dict[str, int]
    metrics: dict[str, str]


def request_of(choose: random.Random) -> Request:
    """Lengths, rules and ends of all kinds."""
    sampling = choose.choice(
        [
            SamplingParams(),
            SamplingParams(temperature=0.8, top_p=0.9),
            SamplingParams(temperature=1.0, seed=choose.randrange(2**32), logprobs=2),
            SamplingParams(temperature=0.7, top_k=20, presence_penalty=0.5, min_new_tokens=4),
        ]
    )
    return Request(
        choose.choice([1, 8, 32, 96]),
        prompt=choose.choice(PROMPTS).beginning * choose.choice([1, 1, 3]),
        draft_steps=choose.choice([None, None, 0, 6]),
        stop=("\n\n",) if choose.random() < 0.2 else (),
        ignore_eos=choose.random() < 0.5,
        sampling=sampling,
    )


async def one(client: Client, choose: random.Random, now: Callable[[], Interval]) -> None:
    """One request, given up or not; counted in the interval in which it ends."""
    limit_s = choose.expovariate(2.0) if choose.random() < GIVEN_UP else None
    by_deadline = choose.random() < 0.5
    try:
        async with asyncio.timeout(None if by_deadline else limit_s):
            output = await client.generate(
                request_of(choose), timeout_s=limit_s if by_deadline else None
            )
    except TimeoutError:  # the call is cancelled
        now().ended["CANCELLED"] += 1
    except grpc.aio.AioRpcError as error:
        now().ended[error.code().name] += 1
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            await asyncio.sleep(AGAIN_S)
    except IncompleteStream:
        now().ended["INCOMPLETE"] += 1
    else:
        now().ended["OK"] += 1
        scrape = output.statistics
        now().committed += round(scrape.mean_acceptance_length * scrape.rounds)
        now().rounds += scrape.rounds


async def soak(
    watched: Watched, streams: int, minutes: float, every_s: float
) -> tuple[list[Interval], dict[str, int]]:
    """(every interval, pages in use once all requests have ended)"""
    intervals, now, began = list[Interval](), Interval(), time.monotonic()
    until = began + 60 * minutes

    async def stream(client: Client, choose: random.Random) -> None:
        while time.monotonic() < until:
            await one(client, choose, lambda: now)

    async with Client(watched.address) as client:
        await client.pair()  # connected before the first interval begins
        running = [
            asyncio.create_task(stream(client, random.Random(index))) for index in range(streams)
        ]
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(every_s, left_s))
            ending, now = now, Interval()
            ending.minutes = round((time.monotonic() - began) / 60, 2)
            ending.taken = {name: taken(pid) for name, pid in watched.pids.items()}
            ending.pages = await pages_in_use(watched.metrics)
            intervals.append(ending)
            print(json.dumps(as_json(ending)), flush=True)
        now = intervals[-1]  # for those that are still running
        await asyncio.gather(*running)
    return intervals, await pages_left(watched.metrics, SETTLE_S)


def as_json(interval: Interval) -> dict[str, Any]:
    acceptance_length = acceptance([interval])
    processes = {name: vars(each) for name, each in interval.taken.items()}
    return {
        **vars(interval),
        "taken": processes,
        "mean_acceptance_length": None
        if acceptance_length is None
        else round(acceptance_length, 3),
    }


def shown(found: list[Verdict], title: str, caption: str) -> Table:
    made = tables.table(title, ["", "first third", "last third", "verdict"], caption)
    for each in found:
        made.add_row(each.quantity, each.first, each.last, "holds" if each.flat else "DOES NOT")
    return made


def started(stack: ExitStack, console: Console, streams: int, threads: int) -> Watched:
    """The tiny pair. A stream that was given up has its place a little longer."""
    services = stack.enter_context(tiny_services(console, 2 * streams, threads))
    metrics = {each.name: each.metrics for each in services.all}
    return Watched(services.address, services.pids, metrics)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--address", help="A drafter; left out: a pair of tiny models, made here.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--warm-up", type=click.FloatRange(0), default=1.0, show_default=True, help=BEFORE)
@click.option("--streams", type=click.IntRange(1), default=8, show_default=True, help="At a time.")
@click.option("--every", type=click.FloatRange(0.1), default=10.0, show_default=True, help="s.")
@click.option("--watch", type=int, multiple=True, help="A process' id, with --address.")
@click.option("--metrics", multiple=True, help="A service's metrics URL, with --address.")
@click.option("--threads", type=int, default=1, show_default=True, help="Of each tiny model.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    address: str | None,
    minutes: float,
    warm_up: float,
    streams: int,
    every: float,
    watch: tuple[int, ...],
    metrics: tuple[str, ...],
    threads: int,
    out: Path | None,
) -> None:
    """Mixed requests and cancels: whether acceptance, memory, descriptors and pages stay flat."""
    if 60 * minutes < THIRDS * every:
        raise click.UsageError(f"--minutes has time for {THIRDS} intervals of --every seconds")
    if address is None and (watch or metrics):
        raise click.UsageError("--watch and --metrics go with --address")
    settings = dict(click.get_current_context().params)
    native.settle()
    console, machine = tables.console(), hardware.describe()
    with ExitStack() as stack:
        if address is None:
            watched = started(stack, console, streams, threads)
        else:
            watched = Watched(
                address, {str(pid): pid for pid in watch}, {url: url for url in metrics}
            )
        intervals, left = asyncio.run(soak(watched, streams, warm_up + minutes, every))
    found = verdicts([each for each in intervals if each.minutes > warm_up], left)
    caption = f"{hardware.caption(machine)}; load average before: {machine['load_at_start']}"
    console.print(shown(found, f"{streams} streams, {minutes:g} minutes", caption))
    folder = results.folder(out, "soak")
    scrape = [asdict(each) for each in found]
    results.write(
        folder / "soak.json",
        machine,
        settings,
        verdicts=scrape,
        intervals=[as_json(each) for each in intervals],
    )
    console.print(f"[dim]results in {folder}[/dim]")
    sys.exit(not all(each.flat for each in found))


if __name__ == "__main__":
    main()
