"""Decision kernels on a device: checked against float64, timed, with torch and two passes beside.

Knows cases, and how a batch of one is made. Does not know at which shapes and for how long
(bench/device/stages.py). On the CPU it runs under Triton's interpreter, where times mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bench.device.budget import Budget
from bench.device.parts.drafts import logits_like
from bench.device.table import Row
from common.sampling.acceptance_rule import AcceptanceRule

PER_SESSION = 8  # rows: seven drafts and the bonus token
Q_WIDTH = 64
GREEDY, TARGET_ONLY, REJECTION, COUPLED = AcceptanceRule
# name: logits' shape, how they are sampled. Rules are AcceptanceRule's.
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "no filter, q": {"rule": REJECTION, "temperature": 0.8},
    "top-k top-p, q": {"rule": REJECTION, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-k top-p, no q": {"rule": TARGET_ONLY, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-p, no q": {"rule": TARGET_ONLY, "temperature": 0.8, "top_p": 0.95},
    "min-p, no q": {"rule": TARGET_ONLY, "temperature": 0.8, "min_p": 0.05},
    "coupled": {"rule": COUPLED, "temperature": 0.8},
    "coupled top-k": {"rule": COUPLED, "temperature": 0.8, "top_k": 50},
    "top-p, flat": {"rule": TARGET_ONLY, "temperature": 1.0, "top_p": 0.95, "flat": True},
}
PROCESSED: dict[str, dict[str, Any]] = {  # as CASES, with logits that change first: checked only
    "greedy, processed": {"rule": GREEDY, "pairs": 24},
    "top-k top-p, q, processed": {
        "rule": REJECTION, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "pairs": 24,
    },
    "coupled, processed": {"rule": COUPLED, "temperature": 0.8, "pairs": 24},
}  # fmt: skip
MAIN = ("greedy", "top-k top-p, q", "coupled")  # of the cases, those that most batches are


def inputs(rows: int, vocab: int, device: torch.device, case: dict[str, Any]) -> dict[str, Any]:
    """One set: logits, drafts of which some are accepted, and the sampling."""
    from bench.device.parts.acceptance_oracle import sampling
    from common.sampling.distribution import SparseDistributions

    given = {name: value for name, value in case.items() if name not in ("flat", "pairs")}
    logits = logits_like(rows, vocab, device, bool(case.get("flat")))
    n = min(Q_WIDTH, vocab)
    scale = float(case.get("temperature", 1.0))
    top, ids = (logits.float() / scale).topk(n, -1)
    q = top.mul(0.9).softmax(-1)  # near p, not p
    draft = ids.gather(1, torch.multinomial(q, 1))[:, 0]
    sessions = rows // PER_SESSION
    seeds = torch.randint(0, 1 << 62, (sessions,)).tolist()
    return {
        "logits": logits,
        "draft": draft,
        "offsets": torch.arange(sessions + 1, device=device) * PER_SESSION,
        "sampling": sampling(sessions, vocab, str(device), seed=seeds, **given),
        "q": SparseDistributions(ids.to(torch.int32), q) if case.get("rule") is REJECTION else None,
        "processors": _processors(ids, sessions, int(case.get("pairs", 0))),
    }


def _processors(likely: torch.Tensor, sessions: int, pairs: int) -> Any:
    """Every kind of change, to as many of each row's likeliest ids. likely: int64 [rows, n]."""
    from verifier.acceptance.batch import LogitsProcessors

    if not pairs:
        return None
    rows, device = len(likely), likely.device
    pairs = min(pairs, likely.shape[1])
    n = rows * pairs
    at = torch.arange(n, device=device)
    return LogitsProcessors(
        offsets=torch.arange(rows + 1, device=device) * pairs,
        ids=likely[:, :pairs].flatten().to(torch.int32),
        bias=torch.randn(n, device=device) * (at % 3 == 0),
        seen=at % 2 == 0,
        count=(at % 4).to(torch.int32),
        banned=at % 11 == 0,
        repetition=torch.linspace(0.8, 1.6, sessions, device=device),
        presence=torch.linspace(0, 1, sessions, device=device),
        frequency=torch.linspace(0.5, 0, sessions, device=device),
    )


def ours(one: dict[str, Any], work: Any) -> torch.Tensor:
    """One result of the kernels: int64 [sessions, 2], accepted length and next token."""
    from verifier.kernels.accept import accept

    accept(
        one["logits"], one["draft"], one["offsets"], one["sampling"], one["q"], one["processors"],
        work.allowed, work=work,
    )  # fmt: skip
    acceptance: torch.Tensor = work.acceptance
    return acceptance


def baseline(one: dict[str, Any], case: dict[str, Any], every_row: bool) -> torch.Tensor:
    """The same in torch."""
    from bench.device.parts import baselines as device_baselines

    if not case:
        return device_baselines.greedy(one["logits"], one["draft"], PER_SESSION)
    q = one["q"]
    return device_baselines.sampled(
        one["logits"], one["draft"], PER_SESSION, case["temperature"],
        case.get("top_k", one["logits"].shape[1]), case.get("top_p", 1.0),
        None if q is None else q.ids.long(), None if q is None else q.probs, every_row,
    )  # fmt: skip


def workspace(
    rows: int,
    vocab: int,
    device: torch.device,
    greedy: bool,
    allowed: torch.Tensor | None = None,
    pairs: int = 0,
) -> Any:
    from verifier.kernels.accept import Workspace

    return Workspace.empty(
        rows, rows // PER_SESSION, vocab, torch.bfloat16, device, allowed, pairs * rows, greedy
    )


def check(
    rows: int, vocab: int, device: torch.device, budget: Budget, names: Sequence[str] = tuple(CASES)
) -> list[Row]:
    """Fresh random inputs against the float64 oracle. What differs must have been a close call."""
    from bench.device.parts.acceptance_oracle import Batch, accept_plainly

    checked: list[Row] = []
    for name in names:
        case = {**CASES, **PROCESSED}[name]
        if not budget.allows(f"check of {name} at {rows} x {vocab}"):
            continue
        one = inputs(rows, vocab, device, case)
        allowed = torch.ones(vocab, dtype=torch.bool, device=device)
        allowed[vocab - vocab // 50 :] = False
        work = workspace(rows, vocab, device, not case, allowed, case.get("pairs", 0))
        work.acceptance.fill_(-99)  # every place must be written
        got = [tuple(pair) for pair in ours(one, work).tolist()]
        s = one["sampling"] if case else _greedy(one["sampling"])
        batch = Batch(
            one["logits"], one["draft"], one["offsets"], s, one["q"], one["processors"], allowed
        )
        want, margins = accept_plainly(batch)
        differ = [m for a, b, m in zip(got, want, margins, strict=True) if a != b]
        checked.append(
            {
                "check": name,
                "rows": rows,
                "vocab": vocab,
                "sessions": len(got),
                "accepted": sum(length for length, _ in got),
                "differ": len(differ),
                "worst_margin": max(differ, default=0.0),
                "right": all(margin < 1e-4 for margin in differ),
            }
        )
    return checked


def _greedy(sampling: Any) -> Any:
    from dataclasses import replace

    return replace(sampling, rule=torch.full_like(sampling.rule, GREEDY))


def measure(
    rows: int,
    vocab: int,
    device: torch.device,
    copy: float,
    budget: Budget,
    names: Sequence[str] = tuple(CASES),
) -> list[Row]:
    """Every case at one shape: time, also in reads of the logits, and the baselines' times."""
    from bench.device.timing import microseconds, sets_for

    measured: list[Row] = []
    size = rows * vocab * 2
    read: float | None = None
    for name in names:
        case = CASES[name]
        if not budget.allows(f"{name} at {rows} x {vocab}"):
            continue
        count = sets_for(size) if device.type == "cuda" else 1
        sets = [inputs(rows, vocab, device, case) for _ in range(count)]
        work = workspace(rows, vocab, device, not case)
        if read is None:
            read = reading(sets, work, device)
        mine = microseconds([partial(ours, one, work) for one in sets], device)
        row: Row = {
            "kernel": name,
            "rows": rows,
            "vocab": vocab,
            "us": mine,
            "bytes": size,
            "read_us": read,
            "reads": mine / read,
            "share_of_copy": size / mine * 1e6 / copy,
        }
        for column, every_row in (("torch_us", True), ("two_pass_us", False)):
            if "min_p" in case or (not case and not every_row):
                continue
            few = sets[: 2 if size > 1 << 28 else 8]
            calls: list[Callable[[], object]] = [
                partial(baseline, one, case, every_row) for one in few
            ]
            row[column] = microseconds(calls, device, 0.03)
        measured.append(row)
    return measured


def reading(sets: list[dict[str, Any]], work: Any, device: torch.device) -> float:
    """Microseconds of reading the logits once: the scan for maxima alone."""
    from bench.device.timing import microseconds
    from common.kernels.logits_scan import scan

    return microseconds(
        [partial(scan, one["logits"], work.real, work.scan) for one in sets], device
    )
