"""`python -m bench.load.recovery`: how long streams pause when their verifier is killed.

Two verifiers and a drafter around tiny random models, made and served on the spot. While streams
run, SIGKILL goes to the verifier that has most of them, at a random moment; it is started again for
the next time. The exit status is 1 if a stream was lost or its text is another than undisturbed;
pauses are reported, not judged.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.load.recovery_streams import Ids, Stream, broken, generate, requests
from bench.load.report import Spread
from bench.support import hardware, results, tables
from bench.support.tiny_services import Service, TinyServices, tiny_services
from bench.support.watching import Scrape, scrape
from client.client import Client, Request
from common.device import native
from common.telemetry.metrics import SESSIONS, VERIFIER_SECONDS, VERIFIER_STAGE

PART = 0.8  # of the time of undisturbed streams, in which the moment lies


@dataclass(frozen=True)
class Kill:
    """One verifier's end, and what came of the streams that ran."""

    after_s: float  # since all streams had begun
    streams: list[Stream]
    pauses_s: list[float]  # of those that lost their verifier
    prefill_s: float | None  # at the other, on average over those: queue, passes and acceptance
    restart_s: float  # until the killed one served again

    @property
    def beside_prefill_s(self) -> list[float]:
        return [max(0.0, each - (self.prefill_s or 0.0)) for each in self.pauses_s]


def prefill_s(before: Scrape, after: Scrape) -> float | None:
    """What one prefill of those between took on average."""

    def grown(suffix: str, stage: str) -> float:
        values = [
            each(VERIFIER_SECONDS, suffix, stage=stage, phase="prefill") for each in (before, after)
        ]
        return values[1] - values[0]

    count = grown("_count", "forward")
    return sum(grown("_sum", stage) for stage in VERIFIER_STAGE) / count if count else None


class Wave:
    """The same requests, all at once."""

    def __init__(self, client: Client, asked: list[Request], expected: list[Ids]) -> None:
        self.streams = [Stream() for _ in asked]
        self._running = [
            asyncio.create_task(generate(client, request, ids, stream))
            for request, ids, stream in zip(asked, expected, self.streams, strict=True)
        ]

    async def begun(self) -> None:
        await asyncio.gather(*(stream.begun.wait() for stream in self.streams))

    async def ended(self) -> None:
        await asyncio.gather(*self._running)


async def kill_one(
    services: TinyServices, wave: Wave, after_s: float, choose: random.Random
) -> Kill:
    """All streams of the wave have ended and both verifiers serve when this returns."""
    await wave.begun()
    await asyncio.sleep(after_s)
    says = {each.name: await scrape(each.metrics) for each in services.verifiers}

    def busiest(each: Service) -> tuple[float, float]:
        return says[each.name](SESSIONS), choose.random()

    victim = max(services.verifiers, key=busiest)
    (other,) = (each for each in services.verifiers if each is not victim)
    killed_s = time.monotonic()
    await asyncio.to_thread(victim.child.kill)  # tokens' times are recorded meanwhile
    await wave.ended()
    prefill = prefill_s(says[other.name], await scrape(other.metrics))
    began = time.monotonic()
    await victim.start()
    restart_s = time.monotonic() - began
    pauses = [pause for each in wave.streams if (pause := each.pause_s(killed_s)) is not None]
    return Kill(after_s, wave.streams, pauses, prefill, restart_s)


async def measure(
    console: Console, services: TinyServices, asked: list[Request], kills: int, seed: int
) -> tuple[float, list[Kill]]:
    """(seconds of an undisturbed wave, what came of each kill)"""
    choose, found = random.Random(seed), list[Kill]()
    async with Client(services.address) as client:
        expected = [(await client.generate(each)).token_ids for each in asked]
        wave = Wave(client, asked, expected)
        await wave.begun()
        began = time.monotonic()
        await wave.ended()
        undisturbed_s = time.monotonic() - began
        if any(stream.changed or stream.status != "OK" for stream in wave.streams):
            raise click.ClickException("undisturbed streams differ among themselves")
        for number in range(kills):
            wave = Wave(client, asked, expected)
            after_s = choose.uniform(0, PART) * undisturbed_s
            found.append(await kill_one(services, wave, after_s, choose))
            lost, most = found[-1].pauses_s, max(found[-1].pauses_s, default=0.0)
            console.print(
                f"{number + 1}/{kills}: killed after {after_s:.2f} s; {len(lost)} of {len(asked)} "
                f"streams taken up by the other, the longest pause {most * 1e3:.0f} ms"
            )
    return undisturbed_s, found


def spreads(kills: list[Kill]) -> dict[str, Spread]:
    return {
        "pause of a stream": Spread.of(s for kill in kills for s in kill.pauses_s),
        "prefill at the other, mean of a kill": Spread.of(
            kill.prefill_s for kill in kills if kill.prefill_s is not None
        ),
        "pause less prefill": Spread.of(s for kill in kills for s in kill.beside_prefill_s),
        "start of the killed one again": Spread.of(kill.restart_s for kill in kills),
    }


def shown(found: dict[str, Spread], title: str, caption: str) -> Table:
    made = tables.table(title, ["", "count", "mean ms", "p50", "p99", "most"], caption)
    for name, each in found.items():
        values = (each.mean, each.p50, each.p99, each.most)
        made.add_row(name, str(each.count), *(f"{value:.0f}" for value in values))
    return made


def as_json(kill: Kill) -> dict[str, Any]:
    return {
        "after_s": kill.after_s,
        "pauses_s": kill.pauses_s,
        "prefill_s": kill.prefill_s,
        "restart_s": kill.restart_s,
        "statuses": [stream.status for stream in kill.streams],
        "resumed": [stream.resumed for stream in kill.streams],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--streams", type=click.IntRange(1), default=8, show_default=True, help="At a time.")
@click.option("--kills", type=click.IntRange(1), default=20, show_default=True)
@click.option("--output-tokens", type=click.IntRange(2), default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Of each tiny model.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    streams: int, kills: int, output_tokens: int, seed: int, threads: int, out: Path | None
) -> None:
    """How long streams pause when their verifier is killed and another is there."""
    settings = dict(click.get_current_context().params)
    native.settle()
    console, machine = tables.console(), hardware.describe()
    asked = requests(streams, output_tokens, seed)
    # Each verifier has capacity for what both had.
    with tiny_services(console, 2 * streams, threads, verifiers=2) as services:
        undisturbed_s, found = asyncio.run(measure(console, services, asked, kills, seed))
    told_by = spreads(found)
    title = f"{kills} times SIGKILL to a verifier under {streams} streams"
    caption = f"{hardware.caption(machine)}; load average before: {machine['load_at_start']}"
    console.print(shown(told_by, title, caption))
    faults = broken([stream for kill in found for stream in kill.streams])
    folder = results.folder(out, "recovery")
    results.write(
        folder / "recovery.json",
        machine,
        settings,
        undisturbed_s=undisturbed_s,
        spreads_ms={name: vars(each) for name, each in told_by.items()},
        kills=[as_json(each) for each in found],
        broken=faults,
    )
    console.print(f"[dim]results in {folder}[/dim]")
    console.print("\n".join(faults) or "every text is the undisturbed one")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
