"""Mixed requests and cancels for as long as asked, and whether anything grows.

    python -m bench.soak --address 127.0.0.1:50052 --minutes 15 --watch PID --watch PID \
        --metrics http://127.0.0.1:9100/metrics

Knows: requests, processes by their ids, gauges by their names. Refuses to know models. Each line is
one interval; at the end the last third is held against the middle one (the first warms up), and the
exit status is 1 if memory or descriptors grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import psutil

from bench.prompts import PROMPTS
from cli.client import Client, Request
from common.sampling import SamplingParams

MEMORY_GROWTH = 1.05  # allocators keep what they once had; more than this is a leak
DESCRIPTOR_GROWTH = 4
GAUGES = ("_pages", "_sessions", "_streams")  # ends of the names that are told


@dataclass
class Counts:
    """What became of the requests since the last line."""

    ended: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0


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


async def stream(client: Client, choose: random.Random, counts: Counts, until: float) -> None:
    """Requests one after the other; every fifth is given up, some before their first token."""
    while time.monotonic() < until:
        timeout_s = choose.expovariate(2.0) if choose.random() < 0.2 else None
        try:
            output = await client.generate(request_of(choose), timeout_s=timeout_s)
        except grpc.aio.AioRpcError as error:
            counts.ended[error.code().name] += 1
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                await asyncio.sleep(0.2)
        else:
            counts.ended["OK"] += 1
            counts.tokens += output.statistics.output_tokens
            counts.rounds += output.statistics.rounds


def gauges(urls: list[str]) -> dict[str, float]:
    """Pages, sessions and streams in use, as the services tell them."""
    found: dict[str, float] = {}
    for url in urls:
        with urllib.request.urlopen(url, timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                name = line.partition("{")[0].partition(" ")[0]
                if not line.startswith("#") and name.endswith(GAUGES):
                    found[line.rpartition(" ")[0]] = float(line.rpartition(" ")[2])
    return found


def processes(ids: list[int]) -> dict[str, dict[str, float]]:
    told = {}
    for each in map(psutil.Process, ids):
        told[str(each.pid)] = {
            "rss_mib": round(each.memory_info().rss / 2**20, 1),
            "descriptors": each.num_fds(),
            "threads": each.num_threads(),
        }
    return told


async def soak(flags: argparse.Namespace) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    counts, began = Counts(), time.monotonic()
    until = began + 60 * flags.minutes
    async with Client(flags.address) as client:
        streams = [
            asyncio.create_task(stream(client, random.Random(index), counts, until))
            for index in range(flags.streams)
        ]
        while time.monotonic() < until:
            await asyncio.sleep(min(flags.every, max(0.0, until - time.monotonic())))
            done = Counts(counts.ended.copy(), counts.tokens, counts.rounds)
            counts.ended.clear()
            counts.tokens = counts.rounds = 0
            lines.append(await line(flags, began, done))
        await asyncio.gather(*streams)
    await asyncio.sleep(1)  # what the last streams held is given back
    lines.append(await line(flags, began, counts))
    return lines


async def line(flags: argparse.Namespace, began: float, counts: Counts) -> dict[str, Any]:
    told = {
        "minutes": round((time.monotonic() - began) / 60, 2),
        "ended": dict(counts.ended),
        "tokens_per_round": round(counts.tokens / counts.rounds, 3) if counts.rounds else None,
        "processes": processes(flags.watch),
        "gauges": await asyncio.to_thread(gauges, flags.metrics),
    }
    print(json.dumps(told), flush=True)
    return told


def grown(lines: list[dict[str, Any]]) -> list[str]:
    """What grew from the middle third to the last."""
    third = len(lines) // 3
    if third == 0:
        return []
    found = []
    for pid in lines[-1]["processes"]:
        middle, last = [
            {
                name: median(each["processes"][pid][name] for each in part)
                for name in ("rss_mib", "descriptors")
            }
            for part in (lines[third : 2 * third], lines[2 * third :])
        ]
        if last["rss_mib"] > MEMORY_GROWTH * middle["rss_mib"]:
            found.append(f"memory of {pid}: {middle['rss_mib']} to {last['rss_mib']} MiB")
        if last["descriptors"] > middle["descriptors"] + DESCRIPTOR_GROWTH:
            found.append(f"descriptors of {pid}: {middle['descriptors']} to {last['descriptors']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Mixed load, and whether anything grows.")
    parser.add_argument("--address", default="127.0.0.1:50052", help="where the drafter listens")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--every", type=float, default=10.0, help="seconds in an interval")
    parser.add_argument("--watch", type=int, action="append", default=[], help="a process' id")
    parser.add_argument("--metrics", action="append", default=[], help="a Prometheus URL")
    parser.add_argument("--out", type=Path, help="JSON file for all lines")
    flags = parser.parse_args()
    lines = asyncio.run(soak(flags))
    if flags.out is not None:
        flags.out.write_text(json.dumps(lines, indent=1))
    found = grown(lines)
    print("\n".join(found) or "nothing grew", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
