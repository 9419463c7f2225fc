"""`python -m bench.quality`: what rounding weights costs, for several models and ways to multiply.

Each against itself in float32, on the text that comes with `crossdraft models --check`, which
measures the same for one. Knows options and files.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from bench.support import hardware, results, tables
from cli.fetching import fetch

MODELS = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma-3-270m", "smollm2-135m")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", "names", multiple=True, default=MODELS, show_default=True)
@click.option(
    "--linear",
    "linears",
    type=click.Choice(["int8", "fp16"]),
    multiple=True,
    default=("int8",),
    show_default=True,
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(names: tuple[str, ...], linears: tuple[str, ...], out: Path | None) -> None:
    """Perplexity, divergence and agreement of models whose weights are rounded."""
    from cli.quality.folder import check_folder
    from cli.quality.measure import own_text

    console = tables.console()
    machine = hardware.describe()
    chosen = results.folder(out, "quality")
    headings = ["model", "linear", "predictions", "float32", "perplexity", "", "mean KL", "top-1"]
    made = tables.table("Against the same model in float32", headings, hardware.caption(machine))
    found = []
    for name in names:
        (folder,) = fetch([name], console)
        for linear in linears:
            with console.status(f"{name}, {linear}"):
                quality = check_folder(folder, linear, own_text())
            found.append({"model": name, "linear": linear, **asdict(quality)})
            made.add_row(
                name,
                linear,
                f"{quality.predictions:,}",
                f"{quality.reference_perplexity:.3f}",
                f"{quality.perplexity:.3f}",
                f"{quality.perplexity_change:+.2%}",
                f"{quality.mean_kl:.4f}",
                f"{quality.top_1:.1%}",
            )
            # What there is so far: all of them take minutes.
            settings = {"models": names, "linears": linears}
            results.write(chosen / "quality.json", machine, settings, found=found)
    console.print(made)
    console.print(f"[dim]results in {chosen}[/dim]")


if __name__ == "__main__":
    main()
