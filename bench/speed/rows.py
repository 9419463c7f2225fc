"""`python -m bench.speed.rows`: what a pass of a model takes, by rows and by how weights multiply.

Knows the model package alone: no service, no draft. All ways are in memory at once, and take turns
with each other, with row counts, and with a plain read of as much memory: a noisy machine hits all
alike. Medians are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from bench.support import hardware, results, tables
from bench.support.progress import ReportProgress, showing_progress
from cli.fetching import fetch
from common.device import native

if TYPE_CHECKING:
    from common.model.language_model import LanguageModel

ROWS = (1, 2, 4, 6, 9, 16, 32)
INEXACT_FUNCTIONS = "exact, ATen's functions"
READ_BYTES = 1 << 30
PAGE_SIZE = 16

Pass = Callable[[int], None]  # over so many rows


def pass_of(model: LanguageModel, context: int, longest: int) -> Pass:
    """Over rows that follow `context` tokens of one session."""
    from common.kv.pages import PagePool
    from common.model.batch import Chunk

    pool = PagePool(-(-(context + longest) // PAGE_SIZE), PAGE_SIZE)
    model.allocate(pool.num_pages, PAGE_SIZE)
    table = pool.table()
    table.reserve(context + longest)
    tokens = [(11 + 7 * place) % model.vocab_size for place in range(context + longest)]
    model.forward([Chunk(tokens[:context], table, 1)])
    table.extend(context)

    def run(count: int) -> None:
        model.forward([Chunk(tokens[context : context + count], table, count)])

    return run


def reading() -> Pass:
    """A sum over READ_BYTES, by all threads: what the memory gives."""
    import torch

    block = torch.ones(READ_BYTES // 8, dtype=torch.int64)

    def run(_: int) -> None:
        block.sum().item()

    return run


def time_rows(
    ways: dict[str, Pass], counts: tuple[int, ...], repeats: int, report_progress: ReportProgress
) -> dict[str, dict[int, list[float]]]:
    """Seconds of each pass; counts and ways take turns."""
    seconds: dict[str, dict[int, list[float]]] = {
        way: {count: [] for count in counts} for way in ways
    }
    for repeat in range(-1, repeats):  # the first round pays for what is made only once
        report_progress(f"repeat {max(repeat, 0) + 1}", max(repeat, 0), repeats)
        first = repeat % len(counts)
        for count in counts[first:] + counts[:first]:
            for way, run in ways.items():
                began = time.perf_counter()
                run(count)
                if repeat >= 0:
                    seconds[way][count].append(time.perf_counter() - began)
    return seconds


def medians(seconds: dict[int, list[float]]) -> dict[int, tuple[float, float]]:
    """rows -> (median milliseconds, ratio to the smallest row count)."""
    middle = {count: statistics.median(each) for count, each in seconds.items()}
    base = middle[min(middle)]
    return {count: (1e3 * each, each / base) for count, each in middle.items()}


def shown(found: dict[str, dict[int, tuple[float, float]]], title: str, caption: str) -> Table:
    """Each way's time, and how it grows with rows."""
    made = tables.table(title, ["rows", *found], caption)
    for count in next(iter(found.values())):
        cells = (f"{found[name][count][0]:.1f} ms  {found[name][count][1]:.2f}×" for name in found)
        made.add_row(str(count), *cells)
    return made


def memory_of(folder: Path, linear: str) -> int:
    """Bytes of weights that a pass of one row reads, embeddings aside."""
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    weights = [each.weight for each in model.modules() if isinstance(each, torch.nn.Linear)]
    return sum(each.numel() for each in weights) * {"int8": 1, "fp16": 2}.get(linear, 4)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The model.")
@click.option("--context", type=click.IntRange(1), default=128, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=21, show_default=True)
@click.option(
    "--rows", "counts", type=click.IntRange(1), multiple=True, default=ROWS, show_default=True
)
@click.option(
    "--packing",
    "packings",
    type=click.Choice(["exact", "int8", "fp16", "plain"]),
    multiple=True,
    default=("exact", "int8"),
    show_default=True,
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(
    target: str,
    context: int,
    repeats: int,
    counts: tuple[int, ...],
    packings: tuple[Any, ...],
    out: Path | None,
) -> None:
    """Time passes over so many rows of one session, for each way to multiply weights."""
    native.settle()
    from common.model.cpu import elementwise
    from common.model.loading import load_model

    console = tables.console()
    machine = hardware.describe()
    (folder,) = fetch([target], console)
    ways: dict[str, Pass] = {}
    invariant: dict[str, bool] = {}
    for packing in packings:
        with console.status(f"loading: {packing}"):
            model = load_model(folder, packing)
        invariant[packing] = model.row_invariant
        run = pass_of(model, context, max(counts))
        ways[packing] = after(elementwise.install, run)
        if packing == "exact":
            ways[INEXACT_FUNCTIONS] = after(elementwise.uninstall, run)
    ways["read"] = reading()
    with showing_progress(console) as report_progress:
        seconds = time_rows(ways, counts, repeats, report_progress)
    found = {name: medians(each) for name, each in seconds.items() if name != "read"}
    bandwidth = READ_BYTES / statistics.median(chain(*seconds["read"].values()))
    exact = ", ".join(name for name, is_so in invariant.items() if is_so) or "none"
    caption = (
        f"{hardware.caption(machine)}. Median of {repeats}. Row-invariant: {exact}. "
        f"Memory was read at {bandwidth / 1e9:.1f} GB/s."
    )
    console.print(shown(found, f"Passes of {target} after {context} tokens", caption))
    fewest = min(counts)
    reads = {name: memory_of(folder, name) / bandwidth * 1e3 for name in packings}
    for name, ms in reads.items():
        took = found[name][fewest][0]
        console.print(
            f"{name}: reading its weights once takes {ms:.0f} ms, a pass {took / ms:.2f}×"
        )
        for count in counts if name != packings[0] else ():
            ratio = found[packings[0]][count][0] / found[name][count][0]
            console.print(f"  {count} rows: {ratio:.2f} times as fast as {packings[0]}")
    chosen = results.folder(out, target)
    settings: dict[str, Any] = {"target": target, "context": context, "repeats": repeats}
    results.write(
        chosen / "rows.json",
        machine,
        settings,
        row_invariant=invariant,
        bandwidth=bandwidth,
        reading_ms=reads,
        median_ms={name: {n: ms for n, (ms, _) in each.items()} for name, each in found.items()},
        ratio={name: {n: times for n, (_, times) in each.items()} for name, each in found.items()},
        seconds=seconds,
    )
    console.print(f"[dim]results in {chosen}[/dim]")


def after(prepare: Callable[[], None], run: Pass) -> Pass:
    """The pass, with a call before it."""

    def both(count: int) -> None:
        prepare()
        run(count)

    return both


if __name__ == "__main__":
    main()
