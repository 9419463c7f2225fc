"""Lines over a number, as a PNG. Knows matplotlib; does not know what the numbers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write(
    path: Path,
    title: str,
    axes: tuple[str, str],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float] | None = None,
    footnote: str = "",
    doubling: bool = False,
) -> None:
    """`lines`: points by label; `levels`: horizontal references; doubling: x is 1, 2, 4, 8 …"""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.subplots()
    for (label, points), marker in zip(lines.items(), "os^Dvx" * len(lines), strict=False):
        xs, ys = zip(*sorted(points), strict=True)
        plot.plot(xs, ys, marker=marker, label=label)
    for (label, level), style in zip((levels or {}).items(), ("--", ":", "-.") * 3, strict=False):
        plot.axhline(level, color="grey", linestyle=style, label=label)
    if doubling:
        plot.set_xscale("log", base=2)
    ticks = sorted({x for points in lines.values() for x, _ in points})
    plot.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    plot.set_ylim(bottom=0)
    plot.set_xlabel(axes[0])
    plot.set_ylabel(axes[1])
    plot.set_title(title, fontsize=11)
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8)
    if footnote:
        figure.text(0.01, -0.02, footnote, fontsize=6, color="grey")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
