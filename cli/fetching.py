"""Progress bars for fetching and converting models. Does not know how that is done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.weights.resolve import resolve


def fetch(names: Iterable[str], console: Console) -> list[Path]:
    """Local directories for these models, with a bar for each stage that takes time."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, _Amount(), console=console)
    bars: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int) -> None:
        progress.start()  # on the first stage: nothing is shown where everything is cached
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
        progress.update(bars[stage], completed=done, total=total)

    try:
        return [resolve(name, show) for name in names]
    finally:
        if bars:
            progress.stop()


class _Amount(DownloadColumn):
    """Bytes for downloads, steps for the rest."""

    def render(self, task):  # type: ignore[no-untyped-def]
        if task.description.startswith("download"):
            return super().render(task)
        return TextColumn("{task.completed:.0f}/{task.total:.0f} steps").render(task)
