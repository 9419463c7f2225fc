"""`python -m bench.speed.rows`: what checking more rows costs one forward pass of the target.

Knows the model package alone: no service, no draft. Row counts take turns, and medians are
compared, so that a noisy machine hits all alike. One packing's weights are in memory at a time.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bench.support import hardware, results, tables
from bench.support.progress import ReportProgress, showing_progress
from cli.fetching import fetch
from common.device import native

if TYPE_CHECKING:
    from common.model.language_model import Packing
    from common.model.paged_model import PagedModel

ROWS = (1, 2, 4, 6, 9, 16, 32)
PACKINGS: tuple[Packing, ...] = ("exact", "fp16", "plain")
INEXACT_FUNCTIONS = "exact, ATen's functions"
PAGE_SIZE = 16


def time_rows(
    model: PagedModel,
    ways: dict[str, Callable[[], None]],
    context: int,
    counts: tuple[int, ...],
    repeats: int,
    report_progress: ReportProgress,
) -> dict[str, dict[int, list[float]]]:
    """Seconds of each pass over `count` rows that follow `context` tokens of one session.

    ways: what is called before a pass of each way; they take turns.
    """
    from common.kv.pages import PagePool
    from common.model.batch import Chunk

    longest = max(counts)
    pool = PagePool(-(-(context + longest) // PAGE_SIZE), PAGE_SIZE)
    model.allocate(pool.num_pages, PAGE_SIZE)
    table = pool.table()
    table.reserve(context + longest)
    tokens = [(11 + 7 * place) % model.vocab_size for place in range(context + longest)]
    model.forward([Chunk(tokens[:context], table, 1)])
    table.extend(context)
    seconds: dict[str, dict[int, list[float]]] = {
        way: {count: [] for count in counts} for way in ways
    }
    for repeat in range(-1, repeats):  # the first round pays for what is made only once
        report_progress(f"repeat {max(repeat, 0) + 1}", max(repeat, 0), repeats)
        first = repeat % len(counts)
        for count in counts[first:] + counts[:first]:
            for way, prepare in ways.items():
                prepare()
                began = time.perf_counter()
                model.forward([Chunk(tokens[context : context + count], table, count)])
                if repeat >= 0:
                    seconds[way][count].append(time.perf_counter() - began)
    return seconds


def ways_of(packing: Packing) -> dict[str, Callable[[], None]]:
    """A packing with the functions that keep rows apart, and `exact` with ATen's own as well."""
    from common.model.cpu import elementwise

    if packing != "exact":
        return {packing: elementwise.install}
    return {packing: elementwise.install, INEXACT_FUNCTIONS: elementwise.uninstall}


def medians(seconds: dict[int, list[float]]) -> dict[int, tuple[float, float]]:
    """rows -> (median milliseconds, ratio to the smallest row count)."""
    middle = {count: statistics.median(each) for count, each in seconds.items()}
    base = middle[min(middle)]
    return {count: (1e3 * each, each / base) for count, each in middle.items()}


def shown(found: dict[str, dict[int, tuple[float, float]]], title: str, caption: str) -> Table:
    made = tables.table(title, ["rows", *found], caption)
    for count in next(iter(found.values())):
        cells = (f"{found[name][count][0]:.1f} ms  {found[name][count][1]:.2f}×" for name in found)
        made.add_row(str(count), *cells)
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The model.")
@click.option("--context", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=21, show_default=True)
@click.option("--packing", "packings", type=click.Choice(PACKINGS), multiple=True, default=PACKINGS)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str, context: int, repeats: int, packings: tuple[Packing, ...], out: Path | None
) -> None:
    """Time one forward pass over 1 to 32 rows of one session, for each way to pack weights."""
    native.settle()
    from common.model.paged_model import PagedModel

    console = tables.console()
    machine = hardware.describe()
    (folder,) = fetch([target], console)
    seconds: dict[str, dict[int, list[float]]] = {}
    invariant: dict[str, bool] = {}
    for packing in packings:
        with console.status(f"loading and packing: {packing}"):
            model = PagedModel.load(folder, packing)
        invariant[packing] = model.row_invariant
        with showing_progress(console) as report_progress:
            ways = ways_of(packing)
            seconds |= time_rows(model, ways, context, ROWS, repeats, report_progress)
        del model
        gc.collect()
    found = {packing: medians(each) for packing, each in seconds.items()}
    exact = ", ".join(name for name, is_so in invariant.items() if is_so) or "none"
    caption = f"{hardware.caption(machine)}. Median of {repeats}. Row-invariant: {exact}."
    console.print(shown(found, f"One pass of {target} after {context} tokens", caption))
    chosen = results.folder(out, target)
    settings: dict[str, Any] = {"target": target, "context": context, "repeats": repeats}
    results.write(
        chosen / "rows.json",
        machine,
        settings,
        row_invariant=invariant,
        median_ms={name: {n: ms for n, (ms, _) in each.items()} for name, each in found.items()},
        ratio={name: {n: times for n, (_, times) in each.items()} for name, each in found.items()},
        seconds=seconds,
    )
    console.print(f"[dim]results in {chosen}[/dim]")


if __name__ == "__main__":
    main()
