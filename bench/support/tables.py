"""How results look in a terminal. Does not know how they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from bench.speed.measures import Divergence, Summary

STAGES = (
    ("draft_model", "draft model"),
    ("draft_queue", "draft queue"),
    ("bridge", "bridge"),
    ("verifier_queue", "verifier queue"),
    ("verifier_forward", "target model"),
    ("verifier_accept", "accept"),
    ("network", "network"),
    ("detokenize", "text"),
)


PIPED_WIDTH = 200  # of a file or pipe, which has none


def console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def table(title: str, headings: Sequence[str], caption: str = "") -> Table:
    """Text on the left, numbers on the right, small print below."""
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for number, heading in enumerate(headings):
        justify: JustifyMethod = "right" if number else "left"
        made.add_column(heading, justify=justify, overflow="fold", no_wrap=not number)
    return made


def systems_table(rows: Sequence[Mapping[str, Any]], title: str, caption: str) -> Table:
    """One line per system; `rows` as bench/speed/comparison.py makes them."""
    positions = max(min(3, len(row["summary"].acceptance_by_position)) for row in rows)
    accepted = [f"acc. {position + 1}" for position in range(positions)]
    headings = [
        "system",
        "k",
        "prompts",
        "accept. len.",
        *accepted,
        "tokens/s",
        "× alone",
        "× assisted",
    ]
    made = table(title, [*headings, "same ids", "bytes/token", "first token"], caption)
    for row in rows:
        one: Summary = row["summary"]
        shares = one.acceptance_by_position[:positions]
        made.add_row(
            one.system,
            str(one.draft_steps),
            str(one.prompts),
            f"{one.mean_acceptance_length:.2f}",
            *[f"{share:.0%}" for share in shares],
            *[""] * (positions - len(shares)),
            f"{one.tokens_per_s:.2f}",
            times(row["times_alone"]),
            times(row["times_assisted"]),
            f"{row['same']}/{one.prompts}",
            f"{one.wire_bytes_per_token:.0f}" if one.wire_bytes_per_token else "",
            f"{one.mean_time_to_first_token_s:.2f} s",
        )
    return made


def stages_table(summaries: Sequence[Summary], title: str, caption: str = "") -> Table:
    """Milliseconds of a round in each stage, and the shares."""
    names = [name for _, name in STAGES]
    shares = ["models", "queues", "outside"]
    made = table(title, ["system", "k", "ms per round", *names, *shares], caption)
    for one in summaries:
        if not one.stage_ms_per_round:
            continue
        made.add_row(
            one.system,
            str(one.draft_steps),
            f"{one.round_ms:.1f}",
            *[f"{one.stage_ms_per_round.get(stage, 0.0):.1f}" for stage, _ in STAGES],
            f"{one.model_share:.1%}",
            f"{one.queue_share:.1%}",
            f"{one.outside_share:.1%}",
        )
    return made


def divergence_table(found: Mapping[str, Sequence[Divergence]]) -> Table | None:
    """Where outputs differ from the target alone; None if none does."""
    headings = ["system", "prompt", "token", "target alone", "instead", "logit gap"]
    made = table("First divergence from the target alone", headings)
    for system, each in found.items():
        for one in each:
            gap = "" if one.logit_gap is None else f"{one.logit_gap:.2g}"
            made.add_row(system, one.prompt, str(one.at), str(one.expected), str(one.got), gap)
    return made if made.row_count else None


def times(ratio: float | None) -> str:
    """A ratio as it is read."""
    return "" if ratio is None else f"{ratio:.2f}×"
