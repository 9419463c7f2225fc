"""Model steps on a device, with random weights at real shapes.

Measures what one step costs for one row and for several, for one session and for many, eager and
replayed, against the time in which the device could read weights and keys once; and whether a row's
bits are its own. Does not know which models and for how long (bench/device/stages.py).
"""

from __future__ import annotations

import time

import torch

from bench.device.budget import Budget
from bench.device.clock import wait
from bench.device.parts.steps import ModelShape, Steps
from bench.device.table import Row
from common.model.batch import Chunk
from common.model.fused_layers import TILED_ROWS
from common.model.language_model import Packing


def model_table(
    shape: ModelShape,
    cases: list[tuple[int, int, int]],
    speed: float,
    budget: Budget,
    fuse: bool = True,
    packing: Packing = "plain",
) -> Row:
    """Steps of one model at every (sessions, rows, context), the first of them first.

    packing: as a service's setting `linear`.
    """
    context = max(length for _, _, length in cases)
    begin = time.perf_counter()
    steps = Steps(shape, max(sessions for sessions, _, _ in cases), context, fuse, packing)
    wait()
    made = time.perf_counter()
    most = max(sessions * rows for sessions, rows, _ in cases)
    steps.model.capture_graphs(most, context + 16)
    wait()
    assert steps.model._graphs is not None
    recorded = time.perf_counter()
    lines = []
    for sessions, rows, length in cases:
        if not budget.allows(f"{shape.name}, {sessions} x {rows} rows after {length}"):
            continue
        steps.at(length)
        floor = (steps.weight_bytes + steps.kv_bytes(sessions, rows)) / speed
        seconds = steps.step_seconds(sessions, rows)
        lines.append(
            {
                "sessions": sessions,
                "rows": rows,
                "context": length,
                "floor_us": floor * 1e6,
                **{f"{name}_us": value * 1e6 for name, value in seconds.items()},
                "times_floor": seconds["device"] / floor,
            }
        )
    steps.at(context)
    return {
        "model": shape.name + ("" if fuse else ", transformers' own layers"),
        "packing": packing,
        "made_s": made - begin,
        "recorded_steps": len(steps.model._graphs.sizes),
        "recorded_s": recorded - made,
        "weight_bytes": steps.weight_bytes,
        "weights_us": steps.weight_bytes / speed * 1e6,
        "steps": lines,
        "bits": bits_table(steps, max(rows for _, rows, _ in cases if rows <= 9))
        if budget.allows(f"{shape.name}, bits of rows")
        else [],
    }


def bits_table(steps: Steps, rows: int) -> list[Row]:
    """Whether a row alone gives what it gives among `rows`: reported, not promised.

    By the steps that serve them, by one recorded size for both, and beside other sessions.
    """
    graphs = steps.model._graphs
    assert graphs is not None
    found = []
    table = steps.tables[0]
    common = next(
        (s for s in graphs.sizes if s.rows >= 16 and s.work_tiles >= s.rows), graphs.sizes[-1]
    )
    many = min(len(steps.tables), TILED_ROWS // rows)
    hows = (("own sizes", 1, None), (f"size {common.rows}", 1, common), (f"of {many}", many, None))
    for name, sessions, size in hows:
        chunks = steps.chunks(sessions, rows)
        together = steps.replayed(chunks, size)[:rows]
        alone = []
        for row, token in enumerate(chunks[0].tokens):
            table.length = steps.context + row
            alone.append(steps.replayed([Chunk([token], table, 1)], size))
        table.length = steps.context
        one = torch.cat(alone)
        top = one.float().topk(2, dim=-1).values
        found.append(
            {
                "how": name,
                "equal_bits": bool(torch.equal(together, one)),
                "same_argmax": int((together.argmax(-1) == one.argmax(-1)).sum()),
                "largest_difference": float((together.float() - one.float()).abs().max()),
                "smallest_gap": float((top[:, 0] - top[:, 1]).min()),
            }
        )
    return found
