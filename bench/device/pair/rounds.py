"""Both services over gRPC on loopback: round time by stage, and whether drafts change the output.

Knows which streams run, and what a round's seconds are shared out to. Does not know how services
start (bench/device/pair/children.py) and how acceptance is scripted (bench/device/pair/script.py).
First all streams run at k = 0, which is the target alone; what came out is the script of the runs
with drafts, and what their outputs are compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.device.budget import Budget
from bench.device.pair.children import Child, free_address
from bench.device.pair.folders import IDS, make_folder
from bench.device.pair.script import Script, expected_length
from bench.device.parts.steps import SHAPES, SMALL, ModelShape
from bench.device.table import Row
from client.client import Client, Output, Request
from common.sampling.parameters import SamplingParams

OUTSIDE = ("network", "verifier_accept", "bridge", "detokenize")  # of models and queues


@dataclass(frozen=True)
class PairPlan:
    """Which models, streams and rates."""

    draft: ModelShape
    target: ModelShape
    streams: tuple[int, ...]  # the largest first: its outputs are the script of all
    rates: tuple[float, ...]
    k: int
    prompt: int
    new: int
    start_s: float


PAIR_CONTEXT = 256 + 96 // 2  # the mean, of LARGE_PAIR's rounds
LARGE_PAIR = PairPlan(SHAPES[0], SHAPES[2], (64, 16, 1), (0.6, 0.8), 3, 256, 96, 120.0)
SMALL_PAIR = PairPlan(SMALL[0], SMALL[1], (2, 1), (0.6,), 3, 6, 12, 600.0)


def run_pair(plan: PairPlan, device: str, out: Path, budget: Budget) -> Row:
    """Start both, run everything that the budget allows, end both."""
    out.mkdir(parents=True, exist_ok=True)
    script = out / "script.json"
    script.unlink(missing_ok=True)
    most = plan.streams[0]
    shared: dict[str, Any] = {
        "max_context_length": plan.prompt + plan.new + 32,
        "max_sessions": most + 2,
        "max_batch_tokens": max(128, 2 * most * (plan.k + 1)),
        "reflection": False,
    }
    target = {**shared, "gpu_memory_fraction": 0.45}
    draft = {**shared, "gpu_memory_fraction": 0.3, "lookup": False, "script": str(script)}
    draft["verifier_timeout_s"] = plan.start_s
    limit = min(plan.start_s, max(30.0, budget.left))
    # Both load at once: the drafter asks the verifier's address until it answers.
    target["listen"] = draft["verifier"] = free_address()
    above = Child("verifier", make_folder(plan.target, out / "target"), device, target, out)
    below = Child("drafter", make_folder(plan.draft, out / "draft"), device, draft, out)
    with above, below:
        above.port(limit)
        port = below.port(limit)
        started = budget.used
        found = asyncio.run(_measure(plan, f"127.0.0.1:{port}", script, budget))
    return {"draft": plan.draft.name, "target": plan.target.name, "started_s": started, **found}


async def _measure(plan: PairPlan, address: str, script: Path, budget: Budget) -> Row:
    runs: list[Row] = []
    equal: list[Row] = []
    prompts = [prompt_of(stream, plan.prompt) for stream in range(plan.streams[0])]
    async with Client(address) as client:
        await crowd(client, prompts[:1], 2, plan.k)  # what is made only once
        alone: list[Output] = []
        for streams in plan.streams:
            if not budget.allows(f"{streams} streams at k = 0"):
                continue
            outputs = await crowd(client, prompts[:streams], plan.new, 0)
            runs.append(_line(streams, 0, 0.0, outputs))
            if alone:
                reported = await _compared(client, prompts, alone, outputs)
                equal.append({"how": "greedy", "streams": streams, "k": 0, **reported})
            alone = alone or outputs
        for rate in plan.rates if alone else ():
            truths = [(*p, *o.token_ids) for p, o in zip(prompts, alone, strict=False)]
            Script.write(script, rate, truths)
            for streams in plan.streams:
                if not budget.allows(f"{streams} streams at k = {plan.k}, {rate} scripted"):
                    continue
                outputs = await crowd(client, prompts[:streams], plan.new, plan.k)
                runs.append(_line(streams, plan.k, rate, outputs))
                reported = await _compared(client, prompts, alone, outputs)
                how = f"greedy, {rate} scripted"
                equal.append({"how": how, "streams": streams, "k": plan.k, **reported})
        few = prompts[: plan.streams[1]]
        if budget.allows("coupled sessions at two k"):
            one, other = [await crowd(client, few, plan.new, k, seeded=True) for k in (0, plan.k)]
            reported = await _compared(client, few, one, other)
            equal.append({"how": "coupled", "streams": len(few), "k": plan.k, **reported})
    return {"rounds": runs, "equality": equal}


async def crowd(
    client: Client, prompts: Sequence[tuple[int, ...]], new: int, k: int, seeded: bool = False
) -> list[Output]:
    """All at once: greedy, or seeded at temperature 0.8, which is the coupled rule."""
    asked = [
        Request(
            new,
            prompt_ids=ids,
            draft_steps=k,
            ignore_eos=True,
            sampling=SamplingParams(temperature=0.8, seed=ids[0]) if seeded else SamplingParams(),
        )
        for ids in prompts
    ]
    return list(await asyncio.gather(*(client.generate(request) for request in asked)))


def prompt_of(stream: int, length: int) -> tuple[int, ...]:
    """Bytes; each stream has a first one of its own."""
    return (stream, *((7 * stream + 31 * place) % IDS for place in range(1, length)))


def _line(streams: int, k: int, rate: float, outputs: Sequence[Output]) -> Row:
    """One round of one stream, in milliseconds, and where they went."""
    every = [output.statistics for output in outputs]
    rounds = sum(each.rounds for each in every)
    whole = sum(each.total_s - each.time_to_first_token_s for each in every) / rounds
    stages = {
        name: sum(each.stage_s.get(name, 0.0) for each in every) / rounds
        for name in every[0].stage_s
    }
    outside = sum(stages.get(name, 0.0) for name in OUTSIDE)
    committed = sum(len(output.token_ids) - 1 for output in outputs)
    return {
        "streams": streams,
        "k": k,
        "scripted": rate,
        "mean_acceptance_length": committed / rounds,
        "AL_expected": expected_length(rate, k),
        "round_ms": whole * 1e3,
        **{f"{name}_ms": seconds * 1e3 for name, seconds in stages.items()},
        "rest_ms": (whole - sum(stages.values())) * 1e3,
        "outside_share": outside / whole,
        "tokens_per_s": committed
        / max(each.total_s - each.time_to_first_token_s for each in every),
    }


async def _compared(
    client: Client,
    prompts: Sequence[tuple[int, ...]],
    alone: Sequence[Output],
    outputs: Sequence[Output],
) -> Row:
    """How many outputs equal the target's own, and the first place of each that doesn't."""
    found: list[dict[str, Any]] = []
    for prompt, one, other in zip(prompts, alone, outputs, strict=False):
        if one.token_ids == other.token_ids:
            continue
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        same = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        if same is None:
            found.append({"stream": prompt[0], "place": None, "gap": None})
            continue
        ids = (*prompt, *one.token_ids[:same])
        reported = SamplingParams(logprobs=2)
        output = await client.generate(
            Request(1, prompt_ids=ids, draft_steps=0, ignore_eos=True, sampling=reported)
        )
        first, second = output.logprobs[0].top_logprobs
        found.append({"stream": prompt[0], "place": same, "gap": float(first - second)})
    return {"outputs": len(outputs), "equal": len(outputs) - len(found), "differ": found}
