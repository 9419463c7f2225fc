"""The stages of the device bench: what each one measures, at which shapes.

Knows shapes, and the tiny ones of a machine without a GPU. Does not know how anything is measured
(bench/device/parts), in which order and for how long (bench/device/__main__.py).
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.device.budget import Budget
from bench.device.check import run as check_parts
from bench.device.clock import copy_bytes_per_second
from bench.device.pair.rounds import LARGE_PAIR, PAIR_CONTEXT, SMALL_PAIR, run_pair
from bench.device.parts.acceptance import CASES, MAIN, PROCESSED, check, measure
from bench.device.parts.attention import error_table, kernel_table, tile_table
from bench.device.parts.attention_case import Shape
from bench.device.parts.drafts import check_and_measure
from bench.device.parts.models import model_table
from bench.device.parts.products import product_table
from bench.device.parts.steps import SHAPES, SMALL
from bench.device.table import Row
from bench.device.timing import matmul_rate
from common.model.language_model import Packing

# Their layers' matrices, [outer, inner]: queries with keys and values, out, gates, down, head.
MATRICES = [
    (1152, 896),
    (896, 896),
    (9728, 896),
    (896, 4864),
    (151_936, 896),
    (4608, 3584),
    (3584, 3584),
    (37_888, 3584),
    (3584, 18_944),
]
# (sessions, rows of each, tokens before them), what is asked about first; the third is the pair's.
_STEPS = [
    (1, 1),
    (1, 8),
    (64, 4),
    (64, 1),
    (16, 4),
    (1, 4),
    (1, 9),
    (16, 1),
    (1, 2),
    (4, 4),
    (4, 1),
]
STEPS = [(sessions, rows, 1024) for sessions, rows in _STEPS]
STEPS.insert(2, (64, 4, PAIR_CONTEXT))


@dataclass
class Bench:
    """What all stages share."""

    device: torch.device
    small: bool
    out: Path
    copy: float = 1.0  # bytes per second, read and written, once the ceilings are known
    matmul: float = 1.0  # operations per second


def ceilings(bench: Bench, budget: Budget) -> Row:
    bench.copy = copy_bytes_per_second(1 << 20 if bench.small else 4 << 30)
    bench.matmul = matmul_rate(bench.device)
    return {"copy_gb_s": bench.copy / 1e9, "bf16_tflop_s": bench.matmul / 1e12}


def checks(bench: Bench, budget: Budget) -> Row:
    """Kernels against a float64 oracle on fresh random inputs."""
    half, single = torch.float16, torch.float32
    if bench.small:
        attention = [Shape(2, 40, 2, 4, 2, 32, single)]
        planned: list[tuple[int, int, tuple[str, ...]]] = [(8, 300, (*MAIN, *PROCESSED))]
    else:
        attention = [Shape(3, 700, 9), Shape(3, 1100, 9, 14, 2, 64), Shape(2, 513, 4, 8, 4, 256)]
        attention += [Shape(2, 1025, 9, 12, 2, 96), Shape(2, 300, 5, 8, 8, 128, half)]
        attention += [Shape(2, 600, 3, 8, 2, 128, single), Shape(64, 4096, 9)]
        planned = [(64, 151_936, (*CASES, *PROCESSED)), (16, 262_144, (*CASES, *PROCESSED))]
        planned.append((8, 49_152, MAIN))
    found = error_table(attention, budget)
    for rows, vocab, names in planned:
        found += check(rows, vocab, bench.device, budget, names)
    return {"checks": found, "wrong": [row for row in found if not row["right"]]}


def parts(bench: Bench, budget: Budget) -> Row:
    """What the services are made of, from copies to a whole engine, against the CPU's own."""
    found = check_parts(bench.small) if budget.allows("all", 0) else []
    _free()
    return {"checks": found, "wrong": [row for row in found if not row["right"]]}


def acceptance(bench: Bench, budget: Budget) -> Row:
    """Decision kernels: time, bytes, share of the copy bandwidth, beside torch and two passes."""
    every = tuple(CASES)
    shapes: list[tuple[int, int, Any]] = [(8, 300, MAIN[:2])]
    if not bench.small:
        shapes = [(rows, 151_936, every) for rows in (512, 64, 8)]
        shapes += [(rows, vocab, MAIN) for vocab in (262_144, 49_152) for rows in (512, 8, 64)]
        shapes += [(2048, vocab, MAIN[:2]) for vocab in (151_936, 49_152, 262_144)]
    found: list[Row] = []
    for rows, vocab, names in shapes:
        found += measure(rows, vocab, bench.device, bench.copy, budget, names)
    return {"acceptance": found}


def drafts(bench: Bench, budget: Budget) -> Row:
    """Draft steps over a shared vocabulary: right, and how fast."""
    shapes = [(4, 300)]
    if not bench.small:
        shapes = [(rows, 49_152) for rows in (8, 64, 512)] + [(64, 151_936), (64, 262_144)]
    return {"drafts": check_and_measure(bench.device, shapes, bench.copy, budget)}


def attention(bench: Bench, budget: Budget) -> Row:
    """Attention alone: share of the copy bandwidth, beside torch's and FlashInfer's."""
    shapes = [Shape(2, 40, 2, 4, 2, 32, torch.float32)]
    if not bench.small:
        shapes = [Shape(s, 4096, rows) for s in (64, 1) for rows in (1, 9, 4)]
        shapes += [Shape(64, 1024, 4, 14, 2, 64), Shape(16, 4096, 4)]
    return {"attention": kernel_table(shapes, bench.copy, budget)}


def products(bench: Bench, budget: Budget) -> Row:
    """Few rows times a matrix."""
    matrices = [(64, 64)] if bench.small else MATRICES
    rows = [1, 9] if bench.small else [1, 9, 16, 64]
    return {"products": product_table(matrices, rows, bench.copy, budget)}


def models(bench: Bench, budget: Budget) -> Row:
    """Model steps with random weights at real shapes."""
    found = []
    cases = [(1, 1, 20), (1, 2, 20)] if bench.small else STEPS
    for shape in SMALL[:1] if bench.small else [SHAPES[0], SHAPES[2], SHAPES[1]]:
        if budget.allows(f"all of {shape.name}", 0 if bench.small else 15):
            # As services run them: a target exactly, by default, which costs it many rows at once.
            packing: Packing = "plain" if shape is LARGE_PAIR.draft else "exact"
            found.append(model_table(shape, cases, bench.copy, budget, packing=packing))
        _free()
    if not bench.small and budget.allows("0.5B with transformers' own layers", 8):
        few = [(1, 1, 1024), (1, 9, 1024)]
        found.append(model_table(SHAPES[0], few, bench.copy, budget, fuse=False))
        _free()
    return {"models": found}


def pair(bench: Bench, budget: Budget) -> Row:
    """Both services over gRPC on loopback, acceptance scripted; k = 0 against k > 0."""
    _free()
    plan = SMALL_PAIR if bench.small else LARGE_PAIR
    return run_pair(plan, bench.device.type, bench.out / "pair", budget)


def tune(bench: Bench, budget: Budget) -> Row:
    """For choosing constants: other tiles of attention and products, of acceptance's launches."""
    from bench.device.tuning import launches

    shapes = [Shape(64, 4096, 1), Shape(64, 4096, 9), Shape(1, 4096, 1), Shape(1, 4096, 9)]
    return {
        "tiles": tile_table(shapes, bench.copy, budget),
        "products": product_table(MATRICES, [1, 9], bench.copy, budget, tune=True),
        "launches": launches(bench.device, budget),
    }


def profile(bench: Bench, budget: Budget) -> Row:
    """Where acceptance's time goes, launch by launch."""
    from bench.device.tuning import profile as profiled

    return {"profile": profiled(bench.device, budget)}


def _free() -> None:
    gc.collect()  # a model and its recorded steps know each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
