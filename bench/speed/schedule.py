"""Which system answers which prompts, in which order, and how long that will take.

Every system answers a prompt before any answers the next one, and who begins moves on with each
prompt: a noisy minute of the machine hits all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.types import BridgeMode

ALONE, ASSISTED, PLAIN = "target alone", "transformers assisted", "transformers plain"
NO_LOOKUP = ", no lookup"  # after the name of a mode


@dataclass(frozen=True)
class Cell:
    """A system, and how many of the prompts it answers. mode: None for transformers' own."""

    system: str
    draft_steps: int
    mode: BridgeMode | None
    prompts: int
    lookup: bool = True


def cells(
    modes: Sequence[BridgeMode],
    steps: Sequence[int],
    main_steps: int,
    prompts: int,
    sweep_prompts: int,
    plain_prompts: int,
    baseline: bool = True,
) -> list[Cell]:
    """The target alone, each mode at `main_steps`, and transformers assisted answer everything.

    So do the first mode and the last without prompt lookup: only the bridge is then compared.
    """
    found = [Cell(ALONE, 0, modes[0], prompts)]
    found += [Cell(mode.value, main_steps, mode, prompts) for mode in modes]
    found += [
        Cell(mode.value + NO_LOOKUP, main_steps, mode, prompts, lookup=False)
        for mode in dict.fromkeys((modes[0], modes[-1]))
    ]
    if baseline:
        found.append(Cell(ASSISTED, main_steps, None, prompts))
        found.append(Cell(PLAIN, 0, None, min(prompts, plain_prompts)))
    swept = [k for k in steps if k != main_steps]
    found += [Cell(m.value, k, m, min(prompts, sweep_prompts)) for k in swept for m in modes]
    return [cell for cell in found if cell.prompts]


def order(cells: Sequence[Cell], prompts: int) -> Iterator[tuple[int, Cell]]:
    """(prompt number, cell), prompt by prompt."""
    for number in range(prompts):
        asked = [cell for cell in cells if number < cell.prompts]
        first = number % len(asked)
        for cell in asked[first:] + asked[:first]:
            yield number, cell


# Seconds per token of each system, in those of the target alone: a guess for the estimate only.
_COST = {ALONE: 1.0, ASSISTED: 2.2, PLAIN: 1.5}
_PAIR_COST = 0.8


def estimate_s(cells: Sequence[Cell], tokens: int, alone_tokens_per_s: float) -> float:
    """Roughly, if every answer is `tokens` long."""
    units = sum(_COST.get(cell.system, _PAIR_COST) * cell.prompts for cell in cells)
    return units * tokens / alone_tokens_per_s
