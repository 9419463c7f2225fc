"""Model steps on a device, with random weights at real shapes: `python -m bench.device_models`.

Tells what one step costs for one row and for several, for one session and for many, called and
replayed, against the time in which the device could read the weights once; and the attention
kernel alone (bench/device_attention.py). Needs no files and no network. `--small` is its form for a
machine without CUDA, where times mean nothing; `--tune` prints attention times by tiles.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are defined


from bench.device_attention import Shape, error_table, kernel_table, tile_table
from bench.device_clock import copy_bytes_per_second, wait
from bench.device_products import product_table
from bench.device_steps import SHAPES, SMALL, ModelShape, Steps
from common.fused_layers import TILED_ROWS
from common.kernels.interpreter import interpret
from common.model import Chunk

Print = Callable[[str], None]
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
# (sessions, rows of each); the first asks what more rows cost one session
ONE_SESSION = [(1, 1), (1, 2), (1, 4), (1, 8), (1, 9), (1, 16)]
SESSIONS = [(4, 1), (4, 4), (16, 1), (16, 4), (64, 1), (64, 4)]


def model_table(
    shape: ModelShape,
    cases: list[tuple[int, int]],
    context: int,
    speed: float,
    tell: Print,
    fuse: bool = True,
) -> dict[str, Any]:
    """Steps of one model at every (sessions, rows)."""
    begin = time.perf_counter()
    steps = Steps(shape, max(sessions for sessions, _ in cases), context, fuse)
    wait()
    made = time.perf_counter()
    most = max(sessions * rows for sessions, rows in cases)
    steps.model.record_steps(most, context + 16)
    wait()
    assert steps.model._graphs is not None
    tell(
        f"{shape.name}: made in {made - begin:.1f} s, {len(steps.model._graphs.sizes)} steps "
        f"recorded in {time.perf_counter() - made:.1f} s"
    )
    lines = []
    for sessions, rows in cases:
        floor = (steps.weight_bytes + steps.kv_bytes(sessions, rows)) / speed
        seconds = steps.step_seconds(sessions, rows)
        lines.append(
            {
                "sessions": sessions,
                "rows": rows,
                "floor_us": floor * 1e6,
                **{f"{name}_us": value * 1e6 for name, value in seconds.items()},
                "times_floor": seconds["device"] / floor,
            }
        )
    return {
        "model": shape.name + ("" if fuse else ", transformers' own layers"),
        "context": context,
        "weight_bytes": steps.weight_bytes,
        "weights_us": steps.weight_bytes / speed * 1e6,
        "steps": lines,
        "bits": bits_table(steps, max(rows for _, rows in cases if rows <= 9)),
    }


def bits_table(steps: Steps, rows: int) -> list[dict[str, Any]]:
    """Whether a row alone gives what it gives among `rows`: told, not promised.

    By the steps that serve them, by one recorded size for both, and beside other sessions.
    """
    graphs = steps.model._graphs
    assert graphs is not None
    found = []
    table = steps.tables[0]
    common = next((s for s in graphs.sizes if s.rows >= 16 and s.items >= s.rows), graphs.sizes[-1])
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


def cells(lines: list[dict[str, Any]]) -> list[str]:
    """Lines of a table with one column per key."""
    names = list(lines[0])
    rows = [names, *([_cell(line.get(name)) for name in names] for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def run(small: bool, tune: bool, tell: Print) -> dict[str, Any]:
    """Everything; JSON-able."""
    begin = time.perf_counter()
    speed = copy_bytes_per_second(1 << 20 if small else 4 << 30)
    found: dict[str, Any] = {"copy_gb_s": speed / 1e9, "torch": torch.__version__}
    lengths = [(2, 64)] if small else [(64, 4096), (1, 4096)]
    shapes = [Shape(s, n, rows) for s, n in lengths for rows in (1, 4, 9)]
    if small:
        shapes = [Shape(2, 40, 2, 4, 2, 32, torch.float32)]
        found["errors"] = error_table(shapes)
    else:
        half = torch.float16
        checks = [Shape(3, 700, 9), Shape(3, 1100, 9, 14, 2, 64), Shape(2, 513, 4, 8, 4, 256)]
        checks += [Shape(2, 1025, 9, 12, 2, 96), Shape(2, 300, 5, 8, 8, 128, half)]
        checks += [Shape(2, 600, 3, 8, 2, 128, torch.float32), Shape(64, 4096, 9)]
        found["errors"] = error_table(checks)
    tell("\n".join(["attention errors", *cells(found["errors"])]))
    if tune:
        wanted = [Shape(64, 4096, 1), Shape(64, 4096, 9), Shape(1, 4096, 1), Shape(1, 4096, 9)]
        found["tiles"] = tile_table(shapes[:1] if small else wanted, speed)
        tell("\n".join(["attention by tiles", *cells(found["tiles"])]))
    matrices = [(64, 64)] if small else MATRICES
    found["products"] = product_table(matrices, [1, 9, 16, 64], speed, tune)
    tell("\n".join(["products", *cells(found["products"])]))
    found["attention"] = kernel_table(shapes, speed)
    tell(f"attention timed after {time.perf_counter() - begin:.0f} s")
    found["models"] = []
    cases = [(1, 1), (1, 2)] if small else ONE_SESSION + SESSIONS
    for shape in SMALL if small else SHAPES:
        found["models"].append(model_table(shape, cases, 20 if small else 1024, speed, tell))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if not small:
        own = model_table(SHAPES[0], [(1, 1), (1, 9)], 1024, speed, tell, fuse=False)
        found["models"].insert(0, own)
    found["seconds"] = time.perf_counter() - begin
    return found


def summary(found: dict[str, Any]) -> str:
    """The tables, last things last."""
    lines = [f"copy {found['copy_gb_s']:.0f} GB/s, torch {found['torch']}", "", "attention alone"]
    lines += cells(found["attention"])
    for model in found["models"]:
        lines += ["", f"{model['model']}: weights {model['weights_us']:.0f} us"]
        lines += [*cells(model["steps"]), *cells(model["bits"])]
    return "\n".join([*lines, f"{found['seconds']:.0f} s in all"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny shapes, for a CPU")
    parser.add_argument("--tune", action="store_true", help="attention times by tiles")
    parser.add_argument("--json", type=Path, help="write everything here")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        interpret()
    found = run(given.small, given.tune, lambda text: print(text, flush=True))
    print(summary(found), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
