"""Load on a Generate endpoint: many streams, closed or open loop, from one process or several.

closed   so many streams at a time; each is followed by another at once. Measures the throughput.
open     streams begin at times that don't depend on answers, and count from the *intended* time: a
         client that waits its turn has waited, too (or a stall would hide all who came during it).

Knows requests, times and statuses. Does not know what they come to (bench/load/report.py).
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import grpc

from bench.support.prompts import PROMPTS
from client.client import Client, Request, TokenDelta
from common.errors import IncompleteStream
from common.types import Origin

START_S = 2.0  # for all processes to be there before the first stream begins
LEFT_OVER_S = 120.0  # that a stream may take once no new ones begin


@dataclass(frozen=True)
class Mix:
    """What is asked: lengths are sampled evenly between two bounds, the same ones by seed."""

    prompt_words: tuple[int, int] = (4, 120)
    output_tokens: tuple[int, int] = (16, 96)
    draft_steps: int | None = None
    ignore_eos: bool = True
    seed: int = 0

    def requests(self, process: int) -> Iterator[Request]:
        """Without end; each process has its own."""
        words = " ".join(prompt.beginning for prompt in PROMPTS).split(" ")
        rng = random.Random(self.seed * 1000 + process)
        while True:
            count, begin = rng.randint(*self.prompt_words), rng.randrange(len(words))
            text = " ".join(itertools.islice(itertools.cycle(words), begin, begin + count))
            yield Request(
                max_new_tokens=rng.randint(*self.output_tokens),
                prompt=text or "the",
                draft_steps=self.draft_steps,
                ignore_eos=self.ignore_eos,
            )


@dataclass(frozen=True)
class Load:
    """One process's share. Exactly one of streams and per_s is above 0."""

    address: str
    duration_s: float
    mix: Mix
    streams: int = 0  # closed loop: at a time
    per_s: float = 0.0  # open loop: how many begin, on average


@dataclass
class StreamRecord:
    """One stream, in seconds of the machine's monotonic clock, which all its processes share."""

    intended_s: float
    began_s: float
    ended_s: float = 0.0
    status: str = "OK"
    token_s: list[float] = field(default_factory=list)  # when each came
    round_s: list[float] = field(default_factory=list)  # when each verdict's last token came
    rounds: int = 0
    prompt_tokens: int = 0
    outside_us: tuple[int, ...] = ()  # by round; empty if the endpoint doesn't report it
    queue_us: tuple[int, ...] = ()


def run(load: Load, processes: int) -> tuple[float, list[StreamRecord]]:
    """(when the first stream was to begin, every stream that began)."""
    begin = time.monotonic() + START_S
    shares = [load] if processes == 1 else _shares(load, processes)
    if len(shares) == 1:
        return begin, asyncio.run(_drive(shares[0], 0, begin))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(shares), mp_context=context) as pool:
        jobs = [pool.submit(_drive_here, share, i, begin) for i, share in enumerate(shares)]
        return begin, [record for job in jobs for record in job.result()]


def _shares(load: Load, processes: int) -> list[Load]:
    counts = [len(range(i, load.streams, processes)) for i in range(processes)]
    shares = [
        Load(load.address, load.duration_s, load.mix, count, load.per_s / processes)
        for count in counts
    ]
    return [share for share in shares if share.streams or share.per_s]


def _drive_here(load: Load, process: int, begin: float) -> list[StreamRecord]:
    return asyncio.run(_drive(load, process, begin))


async def _drive(load: Load, process: int, begin: float) -> list[StreamRecord]:
    requests, records = load.mix.requests(process), list[StreamRecord]()
    async with Client(load.address) as client:
        await client.pair()  # connected before the clock runs
        await _until(begin)
        if load.streams:
            end = begin + load.duration_s
            loops = [_again_and_again(client, requests, end, records) for _ in range(load.streams)]
            await asyncio.gather(*loops)
        else:
            running = []
            for at in _batching_delay(load, process):
                await _until(begin + at)
                one = _stream(client, next(requests), begin + at, records)
                running.append(asyncio.create_task(one))
            await asyncio.gather(*running)
    return records


def _batching_delay(load: Load, process: int) -> Iterator[float]:
    """Poisson: gaps are sampled from an exponential distribution."""
    rng = random.Random(load.mix.seed * 1000 + process + 500)
    at = rng.expovariate(load.per_s)
    while at < load.duration_s:
        yield at
        at += rng.expovariate(load.per_s)


async def _again_and_again(
    client: Client, requests: Iterator[Request], end: float, records: list[StreamRecord]
) -> None:
    while (now := time.monotonic()) < end:
        await _stream(client, next(requests), now, records)


async def _stream(
    client: Client, request: Request, intended: float, records: list[StreamRecord]
) -> None:
    record = StreamRecord(intended, time.monotonic())
    records.append(record)

    def came(delta: TokenDelta) -> None:
        now = time.monotonic()
        record.token_s.append(now)
        if delta.origin is Origin.VERIFIER:
            record.round_s.append(now)

    try:
        output = await client.generate(request, came, timeout_s=LEFT_OVER_S)
    except grpc.aio.AioRpcError as error:
        record.status = error.code().name
    except IncompleteStream:
        record.status = "INCOMPLETE"
    else:
        reported = output.statistics
        record.rounds, record.prompt_tokens = reported.rounds, reported.prompt_tokens
        record.outside_us, record.queue_us = reported.outside_us, reported.queue_us
        del record.token_s[reported.output_tokens :]  # a tail of text is no token
    record.ended_s = time.monotonic()


async def _until(at: float) -> None:
    left = at - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)


def longest(records: Sequence[StreamRecord]) -> float:
    """When the last stream ended."""
    return max((record.ended_s for record in records), default=0.0)
