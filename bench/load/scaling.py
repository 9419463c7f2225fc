"""`python -m bench.load.scaling`: how many drafters a verifier needs, from measured milliseconds.

Knows arithmetic over measured costs, closed forms of a closed loop: sessions draft, travel, are
checked, and begin again. Does not know how anything is measured (bench/speed/rows.py,
bench/device/__main__.py), and queues: rounds that fall badly take longer than this, which no closed
form shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from rich.table import Table

from bench.support import tables

MS, SOME_MS = click.FloatRange(0), click.FloatRange(0, min_open=True)


@dataclass(frozen=True)
class Costs:
    """Milliseconds, each of a pass that all sessions share."""

    draft_step_ms: float  # one token for every session at the drafter
    verify_ms: float  # the target's pass over draft_steps + 1 rows of every session
    alone_ms: float  # the target's pass over one row of every session
    draft_steps: int
    mean_acceptance_length: float
    round_trip_ms: float = 0.0  # between drafter and verifier
    overhead_ms: float = 0.0  # both services' own time in a round

    @property
    def drafting_ms(self) -> float:
        """Of a drafter, for one round of its sessions."""
        return self.draft_steps * self.draft_step_ms

    @property
    def round_ms(self) -> float:
        """From one verdict to the next, as a session sees it. Drafting waits for the verdict."""
        return self.drafting_ms + self.round_trip_ms + self.overhead_ms + self.verify_ms

    @property
    def speedup(self) -> float:
        """Tokens/s of one stream over those of the target alone.

        With round_trip_ms 0 it is L / (c k + v), L the mean acceptance length, the walltime
        improvement of Leviathan et al. (2023), theorem 3.8, with c = draft_step_ms / alone_ms and v
        = verify_ms / alone_ms.
        """
        return self.mean_acceptance_length * self.alone_ms / self.round_ms

    @property
    def longest_round_trip_ms(self) -> float:
        """With which one stream is as fast as the target alone; negative: it never is."""
        worth = self.mean_acceptance_length * self.alone_ms
        return worth - (self.round_ms - self.round_trip_ms)

    @property
    def drafters_per_verifier(self) -> float:
        """GPU-to-GPU: time of drafters in a round over time of verifiers, both kept busy."""
        return self.drafting_ms / self.verify_ms

    @property
    def groups(self) -> float:
        """Such groups of sessions that keep the verifier busy, while others draft or travel."""
        return self.round_ms / self.verify_ms

    @property
    def throughput_gain(self) -> float:
        """Tokens/s of a verifier that is never idle, over those of one that is and drafts not."""
        return self.mean_acceptance_length * self.alone_ms / self.verify_ms

    @property
    def gain_per_device(self) -> float:
        """`throughput_gain` shared out over the verifier and its drafters, all the same device."""
        return self.throughput_gain / (1 + self.drafters_per_verifier)


ROWS = (
    ("a round, ms", "round_ms"),
    ("of it drafting, ms", "drafting_ms"),
    ("one stream, × the target alone", "speedup"),
    ("longest round trip worth drafting over, ms", "longest_round_trip_ms"),
    ("drafters per verifier, both busy", "drafters_per_verifier"),
    ("groups of sessions that keep a verifier busy", "groups"),
    ("a busy verifier, × one without drafts", "throughput_gain"),
    ("the same per device, drafters counted", "gain_per_device"),
)


def shown(costs: Costs) -> Table:
    given = (
        f"draft step {costs.draft_step_ms:g} ms, checking {costs.verify_ms:g} ms, alone "
        f"{costs.alone_ms:g} ms, k = {costs.draft_steps}, "
        f"mean acceptance length {costs.mean_acceptance_length:g}, "
        f"round trip {costs.round_trip_ms:g} ms, overhead {costs.overhead_ms:g} ms"
    )
    made = tables.table("what it comes to", ["", "value"], given)
    for words, name in ROWS:
        made.add_row(words, f"{getattr(costs, name):.2f}")
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--draft-step-ms", type=SOME_MS, required=True, help="One token for every session.")
@click.option("--verify-ms", type=SOME_MS, required=True, help="The target: k + 1 rows of each.")
@click.option("--alone-ms", type=SOME_MS, required=True, help="The target: one row of each.")
@click.option("--draft-steps", type=click.IntRange(1), default=3, show_default=True)
@click.option("--mean-acceptance-length", type=click.FloatRange(1), required=True)
@click.option("--round-trip-ms", type=MS, default=0.0, show_default=True)
@click.option("--overhead-ms", type=MS, default=0.0, show_default=True)
def main(**given: Any) -> None:
    """Ratios for a fleet, from measured milliseconds; docs/scaling.md has a worked example."""
    tables.console().print(shown(Costs(**given)))


if __name__ == "__main__":
    main()
