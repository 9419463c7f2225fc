"""What sampling in several ways brought, as rows, JSON and tables.

Knows what is reported of each way. Does not know who sampled and who read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.acceptance.sampled_ways import Sampled, Way
from bench.support import tables
from common.sampling.parameters import SamplingParams

if TYPE_CHECKING:
    from bench.acceptance.scoring import Score


@dataclass(frozen=True)
class Row:
    """What one way brought under one distribution."""

    way: Way
    params: SamplingParams
    score: Score
    mean_acceptance_length: float
    acceptance_by_position: tuple[float, ...]
    wire_bytes_per_token: float
    wire_bytes_per_position: float | None  # drafted; None: none was

    @property
    def as_json(self) -> dict[str, Any]:
        given = {k: v for k, v in vars(self).items() if k not in ("way", "params", "score")}
        head = {"way": asdict(self.way), "distribution": asdict(self.params), "z": self.score.z}
        return {**head, "score": asdict(self.score), **given}


def row_of(way: Way, params: SamplingParams, score: Score, sampled: Sampled, alone: Sampled) -> Row:
    """alone: what the control brought under the same distribution."""
    return Row(
        way,
        params,
        score,
        sampled.mean_acceptance_length,
        sampled.acceptance_by_position,
        sampled.bytes_per_token,
        sampled.bytes_per_position(alone),
    )


def shown(rows: Sequence[Row], title: str, caption: str) -> Table:
    positions = max(min(3, len(row.acceptance_by_position)) for row in rows)
    accepted = [f"acc. {place + 1}" for place in range(positions)]
    headings = [
        "distribution",
        "sampled by",
        "k",
        "tokens",
        "z",
        "surprise",
        "entropy",
        "accept. len.",
        *accepted,
    ]
    made = tables.table(title, [*headings, "bytes/token", "bytes/position"], caption)
    for row in rows:
        score, shares = row.score, row.acceptance_by_position[:positions]
        added = row.wire_bytes_per_position
        made.add_row(
            distribution_name(row.params),
            row.way.name,
            str(row.way.draft_steps),
            str(score.tokens),
            f"{score.z:+.2f}",
            f"{score.surprise / score.tokens:.4f}",
            f"{score.entropy / score.tokens:.4f}",
            f"{row.mean_acceptance_length:.3f}",
            *[f"{share:.0%}" for share in shares],
            *[""] * (positions - len(shares)),
            f"{row.wire_bytes_per_token:.0f}",
            "" if added is None else f"{added:.1f}",
        )
    return made


def side_by_side(found: dict[str, list[Row]]) -> Table:
    """Mean acceptance length of every way, a line for each pair and distribution."""
    names = list(dict.fromkeys(row.way.name for rows in found.values() for row in rows))
    made = tables.table("Mean acceptance length by rule", ["pair", "distribution", *names])
    for pair, rows in found.items():
        for distribution in dict.fromkeys(distribution_name(row.params) for row in rows):
            own = {
                row.way.name: row for row in rows if distribution_name(row.params) == distribution
            }
            made.add_row(
                pair, distribution, *(f"{own[n].mean_acceptance_length:.3f}" for n in names)
            )
    return made


def distribution_name(params: SamplingParams) -> str:
    """Temperature and filters, as far as set."""
    names = {"temperature": "T", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    given = ((short, getattr(params, name)) for name, short in names.items())
    return ", ".join(f"{short} {value:g}" for short, value in given if value is not None)
