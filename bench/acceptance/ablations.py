"""`python -m bench.acceptance.ablations`: what the draft model reads, how it proposes.

The target's outputs are recorded once (bench/acceptance/recording.py) and replayed
(bench/acceptance/replay.py), so that a variant costs draft steps alone. Knows the variants. Does
not know how contexts and proposals are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bench.acceptance.variants import INTERSECTION, PUBLIC, UNK, Variant, variants
from bench.support import hardware, results, tables
from bench.support.progress import ReportProgress, showing_progress
from bench.support.prompts import PROMPTS
from cli.fetching import fetch
from common.device import native
from common.types import BridgeMode

if TYPE_CHECKING:
    from bench.acceptance.recording import Recordings
    from bench.acceptance.replay import MakeContexts, Round
    from drafter.session import Pair


@dataclass(frozen=True)
class Result:
    """One variant over all prompts."""

    variant: Variant
    rounds: list[Round]
    acceptance_length: float
    first: float
    by_position: tuple[float, ...]


def context_maker(pair: Pair, variant: Variant) -> MakeContexts:
    """What the draft model reads under this variant."""
    from bench.acceptance.replay import Recording
    from bench.acceptance.unk_context import UnkContext
    from drafter.bridge.context import DraftContext, contexts_by_mode

    bridge = pair.bridge

    def make(recording: Recording) -> Mapping[BridgeMode, DraftContext]:
        if variant.encoding is None:
            return {INTERSECTION: UnkContext(bridge, recording.prompt)}
        own = None
        if variant.own and recording.messages:
            own = bridge.draft.render_chat(recording.messages)
        return contexts_by_mode(bridge, recording.prompt, variant.encoding, own, variant.mode)

    return make


def load_pair(recordings: Recordings, target: Path, draft: Path) -> Pair:
    """The drafter's own parts, without a verifier; the engine isn't started yet."""
    from bench.acceptance.replay import info_for_replay, no_verifier
    from common.kv.sizing import make_pool
    from common.model.paged_model import PagedModel
    from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
    from drafter.bridge.bridge import Bridge
    from drafter.bridge.proposer import AutoChooser
    from drafter.engine.engine import DraftEngine
    from drafter.session import Pair
    from drafter.startup import ROW_COST, STEP_COST

    model = PagedModel.load(draft, "fp16")
    ours = Vocabulary(TokenizerFiles.from_directory(draft), model.vocab_size, model.eos_ids)
    files = TokenizerFiles.from_directory(target)
    theirs = Vocabulary(files, recordings.vocab_size, recordings.eos_ids)
    bridge = Bridge(theirs, ours)
    pool = make_pool(model, 16, 1024, 16, 1024)
    engine = DraftEngine(model, pool, bridge, 256, 1024)
    info = info_for_replay(files.sha256, recordings.vocab_size, recordings.eos_ids)
    return Pair(bridge, engine, no_verifier(), info, AutoChooser(STEP_COST, ROW_COST), lookup=False)


async def measure(
    pair: Pair,
    recordings: Recordings,
    planned: list[Variant],
    steps: int,
    report_progress: ReportProgress,
) -> list[Result]:
    """Every variant over every recording; a chooser learns within its own variant only."""
    from bench.acceptance.replay import acceptance, first_acceptance, mean_acceptance_length, replay
    from bench.acceptance.string_bridge import StringBridge
    from drafter.bridge.proposer import AutoChooser
    from drafter.startup import ROW_COST, STEP_COST

    found = []
    for done, variant in enumerate(planned):
        report_progress(f"{variant.proposes}: {variant.reads}", done, len(planned))
        chooser = AutoChooser(STEP_COST, ROW_COST)
        fresh = replace(pair, chooser=chooser, lookup=variant.lookup)
        if variant.by_string:
            bridge = StringBridge(pair.bridge.target, pair.bridge.draft)
            fresh = replace(fresh, bridge=bridge)
        make = context_maker(fresh, variant)
        rounds, _ = await replay(fresh, recordings.outputs, make, steps, variant.mode)
        by_position = acceptance(rounds)
        acceptance_length, first = mean_acceptance_length(rounds), first_acceptance(rounds)
        found.append(Result(variant, rounds, acceptance_length, first, by_position))
    return found


def shown(found: list[Result], title: str, caption: str) -> Table:
    bars = [
        next((each.acceptance_length for each in found if each.variant == v), None)
        for v in (UNK, PUBLIC)
    ]
    headings = ["reads", "proposes", "rounds", "accept. len.", "first", "× UNK", "× UNK, strings"]
    made = tables.table(title, headings, caption)
    for each in found:
        made.add_row(
            each.variant.reads,
            each.variant.proposes,
            str(len(each.rounds)),
            f"{each.acceptance_length:.3f}",
            f"{each.first:.3f}",
            *(tables.times(each.acceptance_length / bar if bar else None) for bar in bars),
        )
    return made


def rejections_shown(found: list[Result], pair: Pair) -> tuple[Table, dict[str, Any]]:
    """The default text and intersection runs, without lookup, rejection by rejection."""
    from bench.acceptance.rejections import Cause, causes, examples

    chosen = [each for each in found[:2] if each.variant.encoding]
    modes = [each.variant.mode for each in chosen]
    made = tables.table("Why first tokens fell", ["cause", *(mode.value for mode in modes)])
    counts = [causes(each.rounds, pair.bridge, each.variant.mode) for each in chosen]
    for cause in Cause:
        cells = (f"{n[cause]}  {n[cause] / max(1, n.total()):.0%}" for n in counts)
        made.add_row(cause.value, *cells)
    parts = {}
    for each, count in zip(chosen, counts, strict=True):
        mode = each.variant.mode
        seen = examples(each.rounds, pair.bridge, mode)
        parts[mode.value] = {
            "counts": {cause.value: count[cause] for cause in Cause},
            "examples": {c.value: [asdict(one) for one in some] for c, some in seen.items()},
        }
    return made, parts


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option("--prompts", type=click.IntRange(1, len(PROMPTS)), default=24, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(target: str, draft: str, out: Path | None, **options: int) -> None:
    """Acceptance of every bridge mode, encoding and template, and of reading UNK instead."""
    native.settle()
    from bench.acceptance.recording import record

    console = tables.console()
    machine = hardware.describe()
    target_folder, draft_folder = fetch([target, draft], console)
    folder = results.folder(out, target, draft)
    prompts, tokens = options["prompts"], options["max_new_tokens"]
    with showing_progress(console) as report_progress:
        kept = folder / f"recording-{prompts}x{tokens}.json"
        recordings = record(target, target_folder, prompts, tokens, kept, report_progress)
    pair = load_pair(recordings, target_folder, draft_folder)
    with showing_progress(console) as report_progress:
        found = _measure(pair, recordings, options["draft_steps"], report_progress)
    caption = (
        f"{hardware.caption(machine)}. Replayed; {options['draft_steps']} draft steps a round."
    )
    console.print(shown(found, f"{draft} → {target}, {prompts} prompts", caption))
    made, parts = rejections_shown(found, pair)
    console.print(made)
    results.write(
        folder / "ablations.json",
        machine,
        {"target": target, "draft": draft, **options},
        variants=[_as_json(each) for each in found],
        first_rejections=parts,
    )
    console.print(f"[dim]results in {folder}[/dim]")


def _measure(
    pair: Pair, recordings: Recordings, steps: int, report_progress: ReportProgress
) -> list[Result]:
    own = any(each.messages for each in recordings.outputs) and pair.bridge.draft.has_chat_template
    pair.engine.start()
    try:
        return asyncio.run(measure(pair, recordings, variants(own), steps, report_progress))
    finally:
        pair.engine.stop()


def _as_json(each: Result) -> dict[str, Any]:
    return {
        "proposes": each.variant.proposes,
        "reads": each.variant.reads,
        "rounds": len(each.rounds),
        "mean_acceptance_length": each.acceptance_length,
        "acceptance_by_position": each.by_position,
    }


if __name__ == "__main__":
    main()
