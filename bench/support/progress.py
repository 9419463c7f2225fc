"""How far a benchmark is: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

ReportProgress = Callable[[str, int, int], None]  # (what runs now, done, of how many)


@contextmanager
def showing_progress(console: Console) -> Iterator[ReportProgress]:
    """While inside, the bar is shown once something was reported."""
    times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(BarColumn(), MofNCompleteColumn(), *times, console=console) as bar:
        task = bar.add_task("", visible=False, total=1)

        def report_progress(what: str, done: int, total: int) -> None:
            if console.is_terminal:
                bar.update(task, description=what, completed=done, total=total, visible=True)
            else:
                console.print(f"{done}/{total} {what}")

        yield report_progress
        bar.update(task, visible=False)
