"""`python -m bench.device.check`: whether device parts give on a GPU what they give on a CPU.

In the order in which they build on each other: copies, CUDA graphs, acceptance, draft tokens, and
an engine's greedy output at k = 0 to 8. To be run before anything is timed. Random weights, no
files, no network, no gRPC. `--small` is its form under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are defined

from bench.device.clock import device
from bench.device.parts.steps import SHAPES, SMALL, Steps
from bench.device.table import print_row
from common.device.runtime import runtime_of
from common.device.staging import HostBuffer, Staging
from common.kernels.interpreter import interpret
from common.kv.pages import PagePool
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose
from common.types import OpenSession, Proposal, SparseDistribution
from drafter.engine.sampler import HostSampler, SamplerInput
from drafter.engine.tokens import DraftSamplingParams
from verifier.acceptance.sampler import HostAcceptanceSampler
from verifier.batcher import Batch
from verifier.engine import Limits, VerifierEngine
from verifier.session import Session
from verifier.startup import make_acceptance_sampler

PAGE_SIZE = 16
PROMPT = (5, 17, 42, 99)


R = AcceptanceRule
ASKED = [  # those with logits processors last, as a batcher has them
    (R.GREEDY, SamplingParams()),
    (R.TARGET_ONLY, SamplingParams(temperature=0.8, top_p=0.9, seed=1)),
    (R.REJECTION, SamplingParams(temperature=0.8, top_k=40, seed=2)),
    (R.REJECTION, SamplingParams(temperature=1.0, seed=3)),
    (R.COUPLED, SamplingParams(temperature=1.0, seed=4, min_p=0.01)),
    (R.GREEDY, SamplingParams(presence_penalty=1.0, logprobs=2)),
    (R.COUPLED, SamplingParams(temperature=0.7, seed=5, repetition_penalty=1.2)),
]


def check_copies() -> dict[str, Any]:
    """What is sent arrives, and comes back."""
    place, runtime = device(), runtime_of(device())
    runtime.enter()
    staging, host_buffer = Staging(place, runtime, 64), HostBuffer(64, torch.int64, runtime)
    right = True
    for turn in range(20):
        sent = [torch.arange(turn + 1), torch.rand(turn), torch.arange(turn) % 2 == 0]
        got = staging.send(sent)
        right &= all(torch.equal(a.cpu(), b) for a, b in zip(got, sent, strict=True))
        right &= torch.equal(host_buffer.fetch(got[0]), sent[0])
    return {"check": "copies", "right": right}


def check_steps(steps: Steps) -> dict[str, Any]:
    """Replayed and called, whole and in part: the same logits."""
    chunks = steps.chunks(len(steps.tables), 3)
    called = steps.model.forward(chunks).float().clone()
    steps.model.capture_graphs(3 * len(chunks) + 1, steps.context + 16)
    replayed = steps.model.forward(chunks).float().clone()
    some = [type(one)(one.tokens, one.table, 1) for one in chunks]
    last = steps.model.forward(some).float()
    return {
        "check": "recorded steps",
        "sizes": steps.model.graph_sizes,
        "largest_difference": float((called - replayed).abs().max()),
        "right": bool(torch.equal(called.argmax(-1), replayed.argmax(-1)))
        and bool(torch.equal(last, replayed[2::3])),
    }


def check_decisions(model: PagedModel) -> dict[str, Any]:
    """Sessions of every rule in one pass, against plain torch on the same logits."""
    vocab = model.vocab_size
    logits = torch.randn(4 * len(ASKED), vocab).to(model.dtype)
    logits[:, :8] += 6
    sessions = [_session(rule, params, [1, 2, 3]) for rule, params in ASKED]
    batch = Batch([], sessions, sessions)
    acceptance = make_acceptance_sampler(
        model, len(logits), len(sessions), torch.ones(vocab, dtype=torch.bool)
    )
    acceptance.warm_up()
    got = acceptance.accept(batch, logits.to(model.device))
    wanted = HostAcceptanceSampler(None).accept(batch, logits.float())
    differ = [
        index
        for index, (a, b) in enumerate(zip(got, wanted, strict=True))
        if not (a and b and (a.accepted_length, a.next_token) == (b.accepted_length, b.next_token))
    ]
    return {"check": "acceptance", "sessions": len(got), "differ": differ, "right": not differ}


def _session(rule: AcceptanceRule, params: SamplingParams, draft: list[int]) -> Session:
    mailbox: Any = SimpleNamespace(post=lambda result: None)
    spec = OpenSession(PROMPT, 50, "", rule=rule, sampling=params)
    made = Session(spec, PagePool(64, PAGE_SIZE), frozenset(), 200, mailbox)
    row = SparseDistribution((1, 2, 3, 7), (0.25,) * 4)
    made.ask(draft, 0.0, [row] * len(draft) if rule is R.REJECTION else ())
    return made


def check_sampler(model: PagedModel) -> dict[str, Any]:
    """Draft tokens of every kind in one step, healing among them, against plain torch."""
    from drafter.engine.device_sampler import DeviceSampler

    vocab = model.vocab_size
    ids = torch.arange(vocab)
    bridge: Any = SimpleNamespace(
        draft=SimpleNamespace(width=vocab),
        draft_real=torch.ones(vocab, dtype=torch.bool),
        shared=ids % 5 != 2,
        draft_spaced=ids % 3 == 0,
        draft_ids=ids,
        noise_ids=ids.flip(0),
        noise_ids_after_space=ids.roll(7),
        draft_extensions=lambda token: torch.arange(token + 1, token + 9),
    )
    plain = SamplingParams(temperature=0.8)
    free = DraftSamplingParams(
        plain, Purpose.PROPOSE, 11, 40, 64, bridge.draft_ids, bridge.draft_ids
    )
    filtered = SamplingParams(temperature=0.8, top_k=50)
    coupled = DraftSamplingParams(
        filtered, Purpose.COUPLED, 12, 40, 1024, bridge.noise_ids, bridge.noise_ids_after_space
    )
    asked = [
        SamplerInput(1, 3, (), bridge.draft_real, None, None),
        SamplerInput(2, 3, (), bridge.draft_spaced, None, None),
        SamplerInput(1, 3, (4,), bridge.shared, free, None),
        SamplerInput(2, 9, (), bridge.draft_spaced, coupled, None),
        SamplerInput(1, 3, (4,), bridge.shared, coupled, None),
    ]
    logits = (3 * torch.randn(sum(each.rows for each in asked), vocab)).to(model.dtype)
    sampler_ = DeviceSampler(bridge, model.device, model.runtime, model.dtype, len(asked), 64)
    sampler_.warm_up()
    got = sampler_.choose(logits.to(model.device), asked)
    wanted = HostSampler(bridge).choose(logits.float(), asked)
    differ = [
        index
        for index, (a, b) in enumerate(zip(got, wanted, strict=True))
        if (a.token, a.healed) != (b.token, b.healed)
    ]
    return {"check": "draft tokens", "sessions": len(got), "differ": differ, "right": not differ}


async def check_engine(model: PagedModel, length: int, most_k: int) -> dict[str, Any]:
    """Greedy output with right and wrong drafts at every k, all at once, against k = 0."""
    sessions = most_k + 1
    pool = PagePool(sessions * 8, PAGE_SIZE)
    model.allocate(pool.num_pages, PAGE_SIZE)
    rows = sessions * (most_k + 1)
    model.capture_graphs(rows, 128)
    limits = Limits(sessions, most_k, 100, rows, 64)
    acceptance = make_acceptance_sampler(
        model, rows, sessions, torch.ones(model.vocab_size, dtype=torch.bool)
    )
    engine = VerifierEngine(model, pool, limits, frozenset(), None, 0, acceptance)
    engine.start()
    try:
        truth = await _output(engine, [], 0, length)
        runs = [_output(engine, truth, k, length) for k in range(most_k + 1)]
        found = await asyncio.gather(*runs)
    finally:
        engine.stop()
    differ = [k for k, tokens in enumerate(found) if tokens != truth]
    return {
        "check": "greedy output at every k",
        "tokens": length,
        "differ_at_k": differ,
        "row_invariant": model.row_invariant,
        "right": not differ or not model.row_invariant,
    }


async def _output(engine: VerifierEngine, truth: Sequence[int], k: int, length: int) -> list[int]:
    session = engine.open(OpenSession(PROMPT, length, ""))
    tokens: list[int] = []
    draft: list[int] = []
    try:
        while True:
            verdict = await session.mailbox.take()
            tokens += draft[: verdict.accepted_length]
            tokens += [] if verdict.next_token is None else [verdict.next_token]
            if verdict.finish_reason is not None:
                return tokens
            draft = list(truth[len(tokens) :][: min(k, length - len(tokens) - 1)])
            if draft and verdict.round % 2:
                draft[-1] = (draft[-1] + 1) % engine.vocab_size
            proposal = Proposal(verdict.round + 1, verdict.committed_length, tuple(draft))
            engine.propose(session, proposal)
    finally:
        engine.close(session)


def run(small: bool, say: Callable[[dict[str, Any]], None] = print_row) -> list[dict[str, Any]]:
    """All checks, in order; JSON-able. One that raises counts as wrong, and the others go on."""
    shape = (SMALL if small else SHAPES)[0]
    steps = Steps(shape, 2 if small else 8, 20 if small else 700, packing="exact")
    model = steps.model
    checks: list[Callable[[], dict[str, Any]]] = [
        check_copies,
        lambda: check_steps(steps),
        lambda: check_decisions(model),
        lambda: check_sampler(model),
        lambda: asyncio.run(check_engine(model, 4 if small else 60, 2 if small else 8)),
    ]
    found = []
    for check in checks:
        began = time.perf_counter()
        try:
            row = check()
        except Exception as cause:
            row = {"check": getattr(check, "__name__", ""), "right": False, "raised": repr(cause)}
        row["seconds"] = round(time.perf_counter() - began, 1)
        say(row)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny, interpreted, on the CPU")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        interpret()
    raise SystemExit(not all(row["right"] for row in run(given.small)))


if __name__ == "__main__":
    main()
