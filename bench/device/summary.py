"""The last thing the device bench prints: one table per stage, then what was asked and what came.

Knows which figures were asked for. Does not know how they came about. Short enough to be read
whole at the end of a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.device.pair.rounds import PAIR_CONTEXT
from bench.device.table import Row, cells, only

DECISION_COLUMNS = (
    "kernel",
    "rows",
    "vocab",
    "us",
    "reads",
    "share_of_copy",
    "torch_us",
    "two_pass_us",
)
ATTENTION_COLUMNS = (
    "sessions", "context", "rows", "us", "share", "sdpa_us",
    "flashinfer_us", "flashinfer_fixed_us",
)  # fmt: skip
STEP_COLUMNS = (
    "sessions",
    "rows",
    "context",
    "floor_us",
    "device_us",
    "step_us",
    "eager_us",
    "times_floor",
)
PAIR_COLUMNS = (
    "streams", "k", "scripted", "mean_acceptance_length", "round_ms", "draft_model_ms",
    "draft_queue_ms",
    "verifier_queue_ms", "verifier_forward_ms", "verifier_decide_ms", "network_ms", "bridge_ms",
    "detokenize_ms", "rest_ms", "outside_share", "tokens_per_s",
)  # fmt: skip


def summary(found: Row) -> list[str]:
    """Lines."""
    stages: Row = found["stages"]
    lines = ["", f"== {found['device']}, torch {found['torch']}, seed {found['seed']} =="]
    lines += _tables(stages)
    for name, stage in stages.items():
        if "failed" in stage:
            lines.append(f"FAILED {name}: {stage['failed'].strip().splitlines()[-1]}")
        if stage["left_out"]:
            lines.append(f"left out of {name}: {', '.join(stage['left_out'])}"[:400])
    asked = list(_asked(stages))
    lines += ["", "asked and found", *cells(asked)]
    return [*lines, f"{found['seconds']:.0f} s in all"]


def _tables(stages: Row) -> Iterator[str]:
    if ceilings := stages.get("ceilings"):
        yield from cells(only([ceilings], "copy_gb_s", "bf16_tflop_s"))
    for name, against in (("checks", "float64"), ("parts", "the CPU's own")):
        if checks := stages.get(name, {}).get("checks"):
            wrong = [row for row in checks if not row["right"]]
            yield f"{name} against {against}: {len(checks)}, wrong: {len(wrong)}"
            yield from (f"  {row}" for row in wrong)
    for name, columns in (("acceptance", DECISION_COLUMNS), ("attention", ATTENTION_COLUMNS)):
        if rows := stages.get(name, {}).get(name):
            kept = [c for c in columns if any(c in row for row in rows)]
            yield from ("", name, *cells(only(rows, *kept)))
    if rows := stages.get("drafts", {}).get("drafts"):
        yield from (
            "",
            "draft steps",
            *cells(only(rows, "rows", "vocab", "us", "share_of_copy", "right")),
        )
    if rows := stages.get("products", {}).get("products"):
        yield from (
            "",
            "products, us",
            *cells([_without(row, "n/k/splits/warps/stages") for row in rows]),
        )
    for model in stages.get("models", {}).get("models", ()):
        yield from ("", f"{model['model']}, weights alone {model['weights_us']:.0f} us")
        yield from cells(only(model["steps"], *STEP_COLUMNS))
        yield from cells(model["bits"])
    if (pair := stages.get("pair", {})).get("rounds"):
        yield from ("", f"pair {pair['draft']} -> {pair['target']}, ms of one stream's round")
        yield from cells(only(pair["rounds"], *PAIR_COLUMNS))
        yield from (_equality(row) for row in pair["equality"])
    for name in ("tiles", "launches", "profile"):
        for stage in stages.values():
            if rows := stage.get(name):
                yield from ("", name, *(str(row) for row in rows))


def _without(row: Row, name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


def _equality(row: Row) -> str:
    line = f"{row['streams']} streams, k = {row['k']}, {row['how']}: "
    line += f"{row['equal']} of {row['outputs']} as the target alone"
    if row["differ"]:
        first = row["differ"][0]
        gaps = [each["gap"] for each in row["differ"] if each["gap"] is not None]
        line += f"; first at token {first['place']}, logit gaps {min(gaps, default=0.0):.2g}"
        line += f" to {max(gaps, default=0.0):.2g}"
    return line


def _asked(stages: Row) -> Iterator[Row]:
    """What the project asks of an H200."""
    accepted = stages.get("acceptance", {}).get("acceptance", ())
    for name, most in (("greedy", 1.3), ("top-k top-p, q", 3.0)):
        row = _one(accepted, kernel=name, rows=512, vocab=151_936)
        yield _line(f"accept {name}, 512 rows, readings of the logits", most, row, "reads")
        # The reading above is our own scan's; a copy's bandwidth is nobody's kernel.
        found = None if row is None else 1 / row["share_of_copy"]
        yield _told("the same, at the copy bandwidth", f"<= {most}", found, most)
        found = None if row is None else row["torch_us"] / row["us"]
        yield _told(
            f"accept {name}, 512 rows, times faster than torch", ">= 5", found, 5.0, above=True
        )
    for rows in (1, 4, 9):
        row = _one(
            stages.get("attention", {}).get("attention", ()), sessions=64, context=4096, rows=rows
        )
        found = None if row is None else row["share"]
        what = f"attention, 64 x 4,096 tokens x {rows} rows, share of copy"
        yield _told(what, ">= 0.7", found, 0.7, above=True)
    models = {
        model["model"]: model["steps"] for model in stages.get("models", {}).get("models", ())
    }
    yield _line(
        "draft step of the 0.5B, floors",
        1.5,
        _one(models.get("0.5B", ()), sessions=1, rows=1, context=1024),
        "times_floor",
    )
    one, eight = (_one(models.get("7B", ()), sessions=1, rows=rows) for rows in (1, 8))
    found = eight["device_us"] / one["device_us"] if one and eight else None
    yield _told("7B, 8 rows over 1", "<= 1.1", found, 1.1)
    step = _one(models.get("7B", ()), sessions=64, rows=4, context=PAIR_CONTEXT)
    for row in stages.get("pair", {}).get("rounds", ()):
        if row["streams"] == 64 and row["k"]:
            packing = (
                max(0.0, row["verifier_forward_ms"] - step["device_us"] / 1e3) if step else 0.0
            )
            outside = row["network_ms"] + row["verifier_decide_ms"] + packing
            what = f"64 streams at {row['scripted']}: gRPC, packing, acceptance"
            yield _told(f"{what}, share of a round", "<= 0.08", outside / row["round_ms"], 0.08)


def _line(what: str, most: float, row: Row | None, key: str) -> Row:
    return _told(what, f"<= {most}", None if row is None else row[key], most)


def _told(what: str, asked: str, found: float | None, limit: float, above: bool = False) -> Row:
    if found is None:
        return {"what": what, "asked": asked, "found": "-", "held": "not measured"}
    held = found >= limit if above else found <= limit
    return {"what": what, "asked": asked, "found": found, "held": "yes" if held else "NO"}


def _one(among: Sequence[Row], **named: Any) -> Row | None:
    for row in among:
        if all(row.get(key) == value for key, value in named.items()):
            return row
    return None
