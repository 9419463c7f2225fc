"""`python -m bench`: two models as a pair, as the target alone, and in transformers' own hands.

Knows options and files. Does not know how anything is run (bench/speed/comparison.py).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.speed.comparison import Measured, Plan, compare, curves
from bench.speed.measures import Run, as_json
from bench.speed.schedule import ALONE, ASSISTED
from bench.support import hardware, picture, results, tables
from bench.support.progress import showing_progress
from bench.support.prompts import PROMPTS
from cli.fetching import fetch


class Steps(click.ParamType):
    """1-8, or 1,2,5, or both."""

    name = "list"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            steps: set[int] = set()
            for part in str(value).split(","):
                first, _, last = part.partition("-")
                steps |= set(range(int(first), int(last or first) + 1))
        except ValueError:
            self.fail(f"{value!r} is no list such as 1-8 or 1,2,5", param, ctx)
        if not steps or min(steps) < 1 or max(steps) > 16:
            self.fail(f"{value!r} must lie in 1…16", param, ctx)
        return tuple(sorted(steps))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option("--prompts", type=click.IntRange(1, len(PROMPTS)), default=24, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option(
    "--draft-steps",
    "steps",
    type=Steps(),
    default="1-8",
    show_default=True,
    help="Draft steps per round of the sweep.",
)
@click.option(
    "--main-steps",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="Draft steps at which every prompt is answered, by transformers too.",
)
@click.option(
    "--sweep-prompts",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Prompts that the other numbers of draft steps answer.",
)
@click.option(
    "--plain-prompts",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Prompts that transformers' plain generation answers.",
)
@click.option("--baseline/--no-baseline", default=True, help="Run transformers' own generation.")
@click.option(
    "--system",
    "systems",
    multiple=True,
    help="Run only this one, as the table names it; may be given again. The target alone always.",
)
@click.option(
    "--linear",
    type=click.Choice(["exact", "int8"]),
    default="exact",
    show_default=True,
    help="How the target's weights multiply; transformers' own are float32.",
)
@click.option("--full", is_flag=True, help="Every system answers every prompt; takes hours.")
@click.option("--quick", is_flag=True, help="2 prompts of 16 tokens, k = 1 and 3: does it run?")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str,
    draft: str,
    prompts: int,
    max_new_tokens: int,
    steps: tuple[int, ...],
    main_steps: int,
    sweep_prompts: int,
    plain_prompts: int,
    baseline: bool,
    systems: tuple[str, ...],
    linear: str,
    full: bool,
    quick: bool,
    out: Path | None,
) -> None:
    """Compare a pair with its target alone and with transformers, on the same prompts.

    All systems take turns at each prompt. Results go to bench/out/DRAFT-to-TARGET/.
    """
    if quick:
        prompts, max_new_tokens, steps, sweep_prompts, plain_prompts = 2, 16, (1, 3), 1, 1
    if full:
        sweep_prompts = plain_prompts = prompts
    console = tables.console()
    machine = hardware.describe()
    target_folder, draft_folder = fetch([target, draft], console)
    plan = Plan(
        target,
        draft,
        (target_folder, draft_folder),
        prompts,
        max_new_tokens,
        steps,
        main_steps,
        sweep_prompts,
        plain_prompts,
        baseline,
        (ALONE, *systems) if systems else (),
        linear,
    )
    folder = results.folder(out, target, draft)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the children
    measured = _run(plan, folder, console)
    _show(measured, plan, machine, console)
    _write(measured, plan, machine, folder)
    console.print(f"[dim]results in {folder}[/dim]")


def _run(plan: Plan, folder: Path, console: Console) -> Measured:
    with (folder / "runs.jsonl").open("w") as kept, showing_progress(console) as report_progress:

        def keep(run: Run) -> None:
            print(json.dumps(as_json(run)), file=kept, flush=True)

        return asyncio.run(compare(plan, folder / "logs", console, report_progress, keep))


def _show(measured: Measured, plan: Plan, machine: dict[str, object], console: Console) -> None:
    rows = measured.rows(plan.main_steps)
    everything = [row for row in rows if row["summary"].draft_steps in (0, plan.main_steps)]
    title = f"{plan.draft} → {plan.target}, at most {plan.max_new_tokens} greedy tokens"
    small = (
        f"{hardware.caption(machine)}. tokens/s: after the first token. ×: over the prompts that "
        "both answered. same ids: outputs equal to the target alone. no lookup: the bridge "
        "alone, as transformers has it."
    )
    console.print(tables.systems_table(everything, title, small))
    if len(everything) < len(rows):
        swept = measured.shared().rows(plan.main_steps)
        few = f"The sweep of k: only the {swept[0]['summary'].prompts} prompts that all answered"
        console.print(tables.systems_table(swept, few, small))
    console.print(
        tables.stages_table(
            [row["summary"] for row in everything],
            "Milliseconds per round and stage",
            "outside: network, bridge, acceptance, text, and what no stage counted.",
        )
    )
    different = tables.divergence_table(measured.divergences)
    if different is not None:
        console.print(different)
    taken = Counter(
        steps for run in measured.of(ASSISTED, plan.main_steps) for steps in run.steps_by_round
    )
    if taken:
        console.print(f"Draft steps that transformers took, and in how many passes: {dict(taken)}")


def _write(measured: Measured, plan: Plan, machine: dict[str, object], folder: Path) -> None:
    results.write(
        folder / "bench.json",
        machine,
        vars(plan),
        pair=measured.pair,
        systems=_as_json(measured.rows(plan.main_steps)),
        sweep=_as_json(measured.shared().rows(plan.main_steps)),
        divergences={
            system: [as_json(one) for one in found]
            for system, found in measured.divergences.items()
        },
        runs=[as_json(run) for run in measured.runs],
    )
    lines, levels = curves(measured)
    picture.write(
        folder / "tokens_per_s.png",
        f"{plan.draft} → {plan.target}",
        ("draft steps per round (k)", "tokens/s after the first"),
        lines,
        levels,
        hardware.caption(machine),
    )


def _as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "summary": as_json(row["summary"])} for row in rows]


if __name__ == "__main__":
    main()
