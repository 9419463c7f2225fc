"""`python -m bench.device_kernels`: decision kernels on a GPU, checked, timed, against torch.

`--small` runs every part in a tiny form under Triton's interpreter, to see that it works; its times
mean nothing. `--tune` and `--profile` are bench/device_tuning.py's. Needs torch and triton, nothing
else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.device_drafts import check_and_measure_drafts, logits_like
from bench.device_table import table, tell

PER_SESSION = 8  # rows: seven drafts and the bonus token
Q_WIDTH = 64
# name: logits' shape, how they are decided. Rules are verifier.kernels.decision.Rule.
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "no filter, q": {"rule": 2, "temperature": 0.8},
    "top-k top-p, q": {"rule": 2, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-k top-p, no q": {"rule": 1, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-p, no q": {"rule": 1, "temperature": 0.8, "top_p": 0.95},
    "min-p, no q": {"rule": 1, "temperature": 0.8, "min_p": 0.05},
    "coupled": {"rule": 3, "temperature": 0.8},
    "coupled top-k": {"rule": 3, "temperature": 0.8, "top_k": 50},
    "top-p, flat": {"rule": 1, "temperature": 1.0, "top_p": 0.95, "flat": True},
}
LARGEST_ONLY_GREEDY = 2048  # rows at which only the main cases run, to stay within the time


def inputs(rows: int, vocab: int, device: torch.device, case: dict[str, Any]) -> dict[str, Any]:
    """One set: logits, drafts of which some stand, and the sampling."""
    from bench.decision_twin import sampling
    from verifier.kernels.decision import SparseQ

    given = {name: value for name, value in case.items() if name != "flat"}
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
        "q": SparseQ(ids.to(torch.int32), q) if case.get("rule") == 2 else None,
    }


def ours(one: dict[str, Any], work: Any) -> torch.Tensor:
    """One decision by the kernels: int64 [sessions, 2], accepted length and next token."""
    from verifier.kernels.decide import decide

    decide(
        one["logits"], one["draft"], one["offsets"], one["sampling"], one["q"], None, work.allowed,
        work=work,
    )  # fmt: skip
    decisions: torch.Tensor = work.decisions
    return decisions


def baseline(one: dict[str, Any], case: dict[str, Any]) -> torch.Tensor:
    """The same in torch."""
    from bench import device_baselines

    if not case:
        return device_baselines.greedy(one["logits"], one["draft"], PER_SESSION)
    q = one["q"]
    return device_baselines.sampled(
        one["logits"], one["draft"], PER_SESSION, case["temperature"],
        case.get("top_k", one["logits"].shape[1]), case.get("top_p", 1.0),
        None if q is None else q.ids.long(), None if q is None else q.probs,
    )  # fmt: skip


def workspace(
    rows: int, vocab: int, device: torch.device, greedy: bool, allowed: torch.Tensor | None = None
) -> Any:
    from verifier.kernels.decide import Workspace

    return Workspace.empty(
        rows, rows // PER_SESSION, vocab, torch.bfloat16, device, allowed, greedy=greedy
    )


def check(rows: int, vocab: int, device: torch.device) -> list[dict[str, Any]]:
    """Fresh random inputs against the float64 twin. What differs must have been a close call."""
    from bench.decision_twin import Batch, decide_plainly

    checked = []
    for name, case in CASES.items():
        one = inputs(rows, vocab, device, case)
        allowed = torch.ones(vocab, dtype=torch.bool, device=device)
        allowed[vocab - vocab // 50 :] = False
        work = workspace(rows, vocab, device, not case, allowed)
        work.decisions.fill_(-99)  # every place must be written
        got = [tuple(pair) for pair in ours(one, work).tolist()]
        s = one["sampling"] if case else _greedy(one["sampling"])
        batch = Batch(one["logits"], one["draft"], one["offsets"], s, one["q"], None, allowed)
        want, margins = decide_plainly(batch)
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

    return replace(sampling, rule=torch.zeros_like(sampling.rule))


def measure(
    rows: int, vocab: int, device: torch.device, copy: float, deadline: float, baselines: bool
) -> list[dict[str, Any]]:
    """Every case at one shape: time, also in reads of the logits, and the baseline's time."""
    from bench.device_timing import microseconds, sets_for

    measured: list[dict[str, Any]] = []
    size = rows * vocab * 2
    read: float | None = None
    for name, case in CASES.items():
        if rows >= LARGEST_ONLY_GREEDY and name not in ("greedy", "top-k top-p, q"):
            continue
        if time.monotonic() > deadline:
            measured.append({"kernel": name, "rows": rows, "vocab": vocab, "note": "no time left"})
            continue
        count = sets_for(size) if device.type == "cuda" else 1
        sets = [inputs(rows, vocab, device, case) for _ in range(count)]
        work = workspace(rows, vocab, device, not case)
        if read is None:
            read = reading(sets, work, device)
        mine = microseconds([partial(ours, one, work) for one in sets], device)
        theirs = None
        if baselines and name != "coupled top-k" and "min_p" not in case:
            calls: list[Callable[[], object]] = [partial(baseline, one, case) for one in sets[:8]]
            theirs = microseconds(calls, device, 0.05)
        measured.append(
            {
                "kernel": name,
                "rows": rows,
                "vocab": vocab,
                "microseconds": round(mine, 2),
                "bytes": size,
                "read_microseconds": round(read, 2),
                "reads": round(mine / read, 2),
                "share_of_copy": round(size / mine * 1e6 / copy, 3),
                "baseline_microseconds": None if theirs is None else round(theirs, 2),
                "times": None if theirs is None else round(theirs / mine, 2),
            }
        )
    table(measured)
    return measured


def reading(sets: list[dict[str, Any]], work: Any, device: torch.device) -> float:
    """Microseconds of reading the logits once: the scan for maxima alone."""
    from bench.device_timing import microseconds
    from common.kernels.scan import scan

    return microseconds(
        [partial(scan, one["logits"], work.real, work.scan) for one in sets], device
    )


def run(device: torch.device, small: bool = False, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Ceilings, checks, then times; JSON-able rows. After `seconds` it leaves out, and says so."""
    from bench.device_clock import copy_bytes_per_second
    from bench.device_timing import matmul_rate

    deadline = time.monotonic() + seconds
    copy = copy_bytes_per_second(4 << 30 if device.type == "cuda" else 1 << 20)
    rate = matmul_rate(device)
    told: list[dict[str, Any]] = [
        {"ceiling": "copy", "bytes_per_s": copy},
        {"ceiling": "bf16 matmul", "flop_per_s": rate},
    ]
    for row in told:
        tell(row)
    shapes = [(8, 1000)] if small else [(64, 151_936), (16, 262_144)]
    for rows, vocab in shapes:
        for row in check(rows, vocab, device):
            tell(row)
            told.append(row)
    told += check_and_measure_drafts(device, small, copy)
    shapes = [(8, 1000)] if small else [
        *((rows, 151_936) for rows in (512, 64, 8, 2048)),
        *((rows, vocab) for vocab in (262_144, 49_152) for rows in (512, 8)),
    ]  # fmt: skip
    for rows, vocab in shapes:
        told += measure(rows, vocab, device, copy, deadline, small or vocab == 151_936)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny, interpreted, on the CPU")
    parser.add_argument("--tune", action="store_true", help="time tile sizes instead")
    parser.add_argument("--profile", action="store_true", help="time every launch instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop measuring after these")
    parser.add_argument("--seed", type=int, help="of the inputs; fresh ones if not given")
    parser.add_argument("--json", type=Path, help="write the rows here")
    given = parser.parse_args()
    if given.small:
        from common.kernels.interpreter import interpret

        interpret()
    seed = given.seed if given.seed is not None else time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed}")
    torch.manual_seed(seed)
    device = torch.device("cpu" if given.small else "cuda")
    from bench import device_tuning

    if given.tune:
        device_tuning.tune(device)
    elif given.profile:
        device_tuning.profile(device)
    else:
        rows = run(device, given.small, given.seconds)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
