"""The main benchmark: the same prompts through every system, interleaved.

Knows the order of things. Does not know processes, arithmetic, tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.speed.measures import Divergence, Run, divergences, ratio, summarise, tokens_per_s
from bench.speed.schedule import ALONE, ASSISTED, NO_LOOKUP, PLAIN, Cell, cells, estimate_s, order
from bench.speed.transformers_baseline import TransformersBaseline
from bench.support.progress import ReportProgress
from bench.support.services import Services
from bench.support.target_prompts import TargetPrompt, target_prompts

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Plan:
    """What is compared; folders are those of the two models' weights."""

    target: str
    draft: str
    folders: tuple[Path, Path]
    prompts: int
    max_new_tokens: int
    steps: tuple[int, ...]
    main_steps: int
    sweep_prompts: int
    plain_prompts: int
    baseline: bool = True
    systems: tuple[str, ...] = ()  # only these; none given: all
    linear: str = "exact"  # of the target; transformers' own is float32


@dataclass
class Measured:
    """Everything that was run."""

    pair: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    divergences: dict[str, list[Divergence]] = field(default_factory=dict)

    def of(self, system: str, draft_steps: int) -> list[Run]:
        return [run for run in self.runs if (run.system, run.draft_steps) == (system, draft_steps)]

    def groups(self) -> dict[tuple[str, int], list[Run]]:
        """By system and k, in a table's order."""
        found: dict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in self.runs:
            found[run.system, run.draft_steps].append(run)
        return dict(sorted(found.items(), key=_place))

    def shared(self) -> Measured:
        """Only the prompts that every system answered."""
        answered = ({run.prompt for run in runs} for runs in self.groups().values())
        prompts = set.intersection(*answered)
        runs = [run for run in self.runs if run.prompt in prompts]
        return Measured(self.pair, runs, self.divergences)

    def rows(self, assisted_steps: int) -> list[dict[str, Any]]:
        """For tables and JSON: one per system and k."""
        alone, assisted = self.of(ALONE, 0), self.of(ASSISTED, assisted_steps)
        return [
            {
                "summary": summarise(runs),
                "times_alone": ratio(runs, alone),
                "times_assisted": ratio(runs, assisted) if assisted else None,
                "same": len(runs) - len(divergences(runs, alone)),
            }
            for runs in self.groups().values()
        ]


async def compare(
    plan: Plan,
    logs: Path,
    console: Console,
    report_progress: ReportProgress,
    keep: Callable[[Run], None],
) -> Measured:
    """Run the plan; `keep` gets every run as it comes, in case that a later one fails."""
    measured = Measured()
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            Services(plan.target, plan.draft, logs, console, True, plan.linear)
        )
        measured.pair = {
            **vars(services.pair),
            "target_row_invariant": services.row_invariant,
            "eos_ids": sorted(services.eos_ids),
        }
        asked = target_prompts(services.files, plan.prompts)
        todo = cells(
            services.modes,
            plan.steps,
            plan.main_steps,
            len(asked),
            plan.sweep_prompts,
            plan.plain_prompts,
            plan.baseline,
        )
        todo = [cell for cell in todo if not plan.systems or cell.system in plan.systems]
        baseline: TransformersBaseline | None = None
        if plan.baseline:
            with console.status("transformers loads both models"):
                baseline = await stack.enter_async_context(
                    TransformersBaseline(
                        *plan.folders,
                        plan.main_steps,
                        services.eos_ids,
                        bridged=services.pair.bridge != "identity",
                        log=logs / "transformers.log",
                    )
                )
        speed = await _warm_up(services, baseline, asked[0])
        minutes = estimate_s(todo, plan.max_new_tokens, speed) / 60
        console.print(
            f"[dim]{services.pair.draft_model} → {services.pair.target_model}: "
            f"{len(todo)} systems, {sum(cell.prompts for cell in todo)} answers; at "
            f"{speed:.1f} tokens/s alone about {minutes:.0f} minutes[/dim]"
        )
        total = sum(cell.prompts for cell in todo)
        for done, (number, cell) in enumerate(order(todo, len(asked))):
            report_progress(
                f"{asked[number].name}: {cell.system}, k = {cell.draft_steps}", done, total
            )
            measured.runs.append(await _run(services, baseline, cell, asked[number], plan))
            keep(measured.runs[-1])
        report_progress("looking at what differs", total, total)
        measured.divergences = await _compare_ids(measured, baseline, asked)
    return measured


async def _run(
    services: Services,
    baseline: TransformersBaseline | None,
    cell: Cell,
    target_prompt: TargetPrompt,
    plan: Plan,
) -> Run:
    if cell.mode is not None:
        return await services.run(
            cell.system,
            target_prompt,
            plan.max_new_tokens,
            cell.draft_steps,
            cell.mode,
            cell.lookup,
        )
    assert baseline is not None
    kind = "assisted" if cell.system == ASSISTED else "plain"
    run = await baseline.run(kind, target_prompt, plan.max_new_tokens)
    return replace(run, system=cell.system)


async def _warm_up(
    services: Services, baseline: TransformersBaseline | None, target_prompt: TargetPrompt
) -> float:
    """The first request pays for what is made only once. Returns tokens/s of the target alone."""
    for mode in services.modes:
        await services.run("warm-up", target_prompt, WARM_UP_TOKENS, 3, mode)
    await services.run("warm-up", target_prompt, WARM_UP_TOKENS, 3, services.modes[0], lookup=False)
    alone = await services.run("warm-up", target_prompt, WARM_UP_TOKENS, 0, services.modes[0])
    if baseline is not None:
        await baseline.run("assisted", target_prompt, 2)
    return alone.committed / alone.round_s if alone.committed else 1.0


async def _compare_ids(
    measured: Measured, baseline: TransformersBaseline | None, asked: Sequence[TargetPrompt]
) -> dict[str, list[Divergence]]:
    """By system; with the logit gap where transformers is there to measure it."""
    prompts = {target_prompt.name: target_prompt.ids for target_prompt in asked}
    alone = {run.prompt: run.token_ids for run in measured.of(ALONE, 0)}
    found: dict[str, list[Divergence]] = {}
    for system, steps in dict.fromkeys((run.system, run.draft_steps) for run in measured.runs):
        different = []
        for one in divergences(measured.of(system, steps), measured.of(ALONE, 0)):
            if baseline is not None and one.expected is not None and one.got is not None:
                ids = prompts[one.prompt] + alone[one.prompt][: one.at]
                gap = await baseline.logit_gap(ids, one.expected, one.got)
                one = replace(one, logit_gap=gap)
            different.append(one)
        if different:
            found[f"{system}, k = {steps}"] = different
    return found


_PLACES = (ALONE, "text", "intersection", "auto", ASSISTED, PLAIN)


def _place(group: tuple[tuple[str, int], list[Run]]) -> tuple[int, bool, int]:
    (system, steps), _ = group
    return _PLACES.index(system.removesuffix(NO_LOOKUP)), system not in _PLACES, steps


def curves(measured: Measured) -> tuple[dict[str, list[tuple[float, float]]], dict[str, float]]:
    """(k, tokens/s) per mode, and levels without k, over the prompts that every system answered."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    levels: dict[str, float] = {}
    for (system, steps), runs in measured.shared().groups().items():
        speed = tokens_per_s(runs)
        if system in (ALONE, ASSISTED, PLAIN):
            levels[f"{system}, k = {steps}" if steps else system] = speed
        elif not system.endswith(NO_LOOKUP):
            lines[system].append((steps, speed))
    return dict(lines), levels
