"""Streams through a drafter while their verifier is killed: when tokens came, how often each was
taken up again, and whether its output is the undisturbed one.

Knows requests, times and what a stream's own statistics add up to. Does not know processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import grpc

from bench.support.prompts import PROMPTS
from client.client import Client, Output, Request
from client.results import Statistics, TokenDelta
from common.errors import IncompleteStream
from common.sampling.parameters import SamplingParams

LIMIT_S = 300.0  # for a stream, whatever happens to it
Ids = tuple[int, ...]


@dataclass
class Stream:
    """One generation, in seconds of the monotonic clock."""

    token_s: list[float] = field(default_factory=list)
    status: str = "OK"
    changed: bool = False
    resumed: int = 0  # how often another verifier took over
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # its first token came, or it ended

    def pause_s(self, killed_s: float) -> float | None:
        """From the last token before the loss to the first after it; None: nothing was lost.

        Tokens that were under way when the verifier ended may come after that, so it is the
        longest gap that ends later.
        """
        if not self.resumed:
            return None
        gaps = [b - a for a, b in pairwise(self.token_s) if b > killed_s]
        return max(gaps, default=None)


def requests(count: int, output_tokens: int, seed: int) -> list[Request]:
    """Greedy and seeded by turns: what is the same at any verifier."""
    return [
        Request(
            output_tokens,
            prompt=PROMPTS[index % len(PROMPTS)].beginning,
            ignore_eos=True,
            sampling=SamplingParams(temperature=0.9, seed=seed) if index % 2 else SamplingParams(),
        )
        for index in range(count)
    ]


def resumptions(statistics: Statistics) -> int:
    """A prefill's token is in no round: one begins the stream, one each time it is taken up."""
    in_rounds = round(statistics.mean_acceptance_length * statistics.rounds)
    return max(0, statistics.output_tokens - in_rounds - 1)


async def generate(client: Client, request: Request, expected: Ids, stream: Stream) -> None:
    def came(_: TokenDelta) -> None:
        stream.token_s.append(time.monotonic())
        stream.begun.set()

    try:
        output: Output = await client.generate(request, came, LIMIT_S)
    except grpc.aio.AioRpcError as error:
        stream.status = error.code().name
    except IncompleteStream:
        stream.status = "INCOMPLETE"
    else:
        del stream.token_s[output.statistics.output_tokens :]  # a tail of text is no token
        stream.changed = output.token_ids != expected
        stream.resumed = resumptions(output.statistics)
    finally:
        stream.begun.set()


def broken(streams: Sequence[Stream]) -> list[str]:
    """What a client would have noticed besides a pause; empty if nothing."""
    lost = [stream.status for stream in streams if stream.status != "OK"]
    changed = sum(stream.changed for stream in streams)
    found = [f"{len(lost)} of {len(streams)} streams were lost: {', '.join(sorted(set(lost)))}"]
    found = found if lost else []
    if changed:
        found.append(f"{changed} of {len(streams)} streams gave another text than undisturbed")
    if not any(stream.resumed for stream in streams):
        found.append("no stream lost its verifier, so nothing was recovered from")
    return found
