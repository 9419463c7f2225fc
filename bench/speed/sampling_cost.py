"""`python -m bench.speed.sampling_cost`: the cost of sampling beside the pass.

One pass over four rows of each session, and acceptance on the logits that it gave, by every rule at
temperature 1 without filters: the dearest distribution, as every id of the vocabulary takes part.
All drafts are accepted under `coupled` and `rejection`, so that every row counts. Knows the model
package and acceptance. Does not know services.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bench.support import hardware, results, tables
from bench.support.progress import showing_progress
from cli.fetching import fetch
from common.device import native

if TYPE_CHECKING:
    from common.model.paged_model import PagedModel

DRAFTS, PAGE_SIZE, SLOTS = 3, 16, 64
Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    sessions: int
    rule: str
    pass_ms: float
    accept_ms: float
    noise_ms: float

    @property
    def noise_share(self) -> float:
        """Of the target's side of a round: its pass and its acceptance."""
        return self.noise_ms / (self.pass_ms + self.accept_ms)


def calls_for(model: PagedModel, sessions: int, context: int) -> Calls:
    """What takes turns: the pass, then by rule the acceptance and its random numbers alone."""
    import torch

    from bench.device.parts.acceptance_oracle import sampling
    from common.kv.pages import PagePool
    from common.model.batch import Chunk
    from common.sampling.acceptance_rule import AcceptanceRule
    from common.sampling.distribution import SparseDistributions, sample
    from common.sampling.rng import Purpose, exponential
    from verifier.acceptance.rules import accept

    rows, vocab = DRAFTS + 1, model.vocab_size
    pool = PagePool(sessions * -(-(context + rows) // PAGE_SIZE), PAGE_SIZE)
    model.allocate(pool.num_pages, PAGE_SIZE)
    chunks = []
    for session in range(sessions):
        table = pool.table()
        table.reserve(context + rows)
        tokens = [(11 + 7 * at + 31 * session) % vocab for at in range(context + rows)]
        model.forward([Chunk(tokens[:context], table, 1)])
        table.extend(context)
        chunks.append(Chunk(tokens[context:], table, rows))
    logits = model.forward(chunks)
    p = logits.softmax(dim=-1)
    offsets = torch.arange(sessions + 1) * rows
    seed = torch.arange(sessions)
    step = torch.arange(rows).repeat(sessions)
    likeliest = p.topk(SLOTS, dim=-1)
    drafts = {
        AcceptanceRule.TARGET_ONLY: likeliest.indices[:, 0],
        AcceptanceRule.REJECTION: likeliest.indices[:, 0],
        AcceptanceRule.COUPLED: sample(
            p, seed.repeat_interleave(rows), context + step, Purpose.COUPLED
        ),
    }
    q = SparseDistributions(likeliest.indices.int(), likeliest.values)
    ids = torch.arange(vocab)

    def verified(rule: AcceptanceRule) -> Callable[[], object]:
        batch = sampling(sessions, vocab, rule=int(rule), seed=seed, first_position=context)
        return lambda: accept(logits, drafts[rule], offsets, batch, q)

    def making_noise(times: int, purpose: Purpose) -> Callable[[], object]:
        def run() -> None:
            for at in range(times):
                exponential(seed, torch.full((sessions,), context + at), ids, purpose)

        return run

    made: Calls = {"pass": lambda: model.forward(chunks)}
    for rule in (AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED):
        made[rule.name] = verified(rule)
    made["noise of one row"] = making_noise(1, Purpose.SAMPLE)
    made["noise of all rows"] = making_noise(rows, Purpose.COUPLED)
    return made


def measure(calls: Calls, repeats: int) -> dict[str, float]:
    """Median milliseconds; the calls take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(-1, repeats):  # the first pays for what is made only once
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(each) for name, each in seconds.items()}


def rows_of(sessions: int, ms: dict[str, float]) -> list[Row]:
    """A session without a seed samples one row a round; a seeded one every row that it reaches."""
    one, every = ms["noise of one row"], ms["noise of all rows"]
    return [
        Row(sessions, rule, ms["pass"], ms[rule], every if rule == "COUPLED" else one)
        for rule in ("TARGET_ONLY", "REJECTION", "COUPLED")
    ]


def shown(rows: list[Row], title: str, caption: str) -> Table:
    headings = ["sessions", "rule", "pass ms", "acceptance ms", "random numbers ms", "their share"]
    made = tables.table(title, headings, caption)
    for row in rows:
        ms = (f"{each:.1f}" for each in (row.pass_ms, row.accept_ms, row.noise_ms))
        rule = row.rule.lower().replace("_", "-")
        made.add_row(str(row.sessions), rule, *ms, f"{row.noise_share:.1%}")
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The model.")
@click.option("--context", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True)
@click.option("--sessions", type=click.IntRange(1), multiple=True, default=(1, 16))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str, context: int, repeats: int, sessions: tuple[int, ...], out: Path | None
) -> None:
    """Time a pass of the target, acceptance by each rule, and the random numbers in it."""
    native.settle()
    from common.model.paged_model import PagedModel

    console = tables.console()
    machine = hardware.describe()
    (folder,) = fetch([target], console)
    with console.status("loading"):
        model = PagedModel.load(folder)
    found: list[Row] = []
    with showing_progress(console) as report_progress:
        for place, count in enumerate(sessions):
            report_progress(f"{count} sessions", place, len(sessions))
            found += rows_of(count, measure(calls_for(model, count, context), repeats))
    caption = f"{hardware.caption(machine)}. Median of {repeats}. {DRAFTS} drafts a session."
    console.print(shown(found, f"Deciding on {target}, temperature 1, no filters", caption))
    chosen = results.folder(out, target)
    settings: dict[str, Any] = {"target": target, "context": context, "repeats": repeats}
    results.write(chosen / "samples.json", machine, settings, rows=[vars(row) for row in found])
    console.print(f"[dim]results in {chosen}[/dim]")


if __name__ == "__main__":
    main()
