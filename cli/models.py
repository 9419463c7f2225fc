"""`crossdraft models`: which demo models there are, which lie in the cache, what rounding costs."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from cli.fetching import fetch
from cli.options.text import Text
from common.weights.presets import PRESETS
from common.weights.resolve import cached


@click.command("models")
@click.option(
    "--fetch",
    "name",
    type=Text(),
    metavar="NAME",
    help="Download and convert a preset (or a Hub id) and print where it lies.",
)
@click.option(
    "--check",
    "checked",
    type=Text(),
    metavar="NAME",
    help="Compare a model, in the arithmetic of --linear, with itself in float32.",
)
@click.option(
    "--linear",
    type=click.Choice(["int8", "fp16"]),
    default="int8",
    show_default=True,
    help="What --check measures.",
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What --check reads; left out: a text that comes along, of prose and Python.",
)
def models(name: str | None, checked: str | None, linear: str, text: Path | None) -> None:
    """Show the presets: models that can be had without the Hugging Face Hub.

    Wherever a model is asked for, a directory, a .gguf file or a Hub id will do as well. The cache
    is $CROSSDRAFT_CACHE, or crossdraft/ in the user's cache folder.
    """
    if name is not None:
        (folder,) = fetch([name], Console(stderr=True))
        click.echo(str(folder))
        return
    if checked is not None:
        _check(checked, linear, text)
        return
    table = Table()
    for heading in ("name", "what it is", "licence", "download", "cached in"):
        table.add_column(heading, overflow="fold")
    for preset in PRESETS.values():
        folder_or_none = cached(preset.name)
        table.add_row(
            preset.name,
            preset.title + (", base model: no chat" if preset.base_model else ""),
            preset.licence,
            f"{preset.gguf_bytes / 1e6:,.0f} MB",
            str(folder_or_none) if folder_or_none else "no",
        )
    Console().print(table)


def _check(name: str, linear: str, text: Path | None) -> None:
    from cli.quality.folder import check_folder
    from cli.quality.measure import own_text

    console = Console(highlight=False)
    (folder,) = fetch([name], Console(stderr=True))
    try:
        written = own_text() if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise click.ClickException(f"{text} is no UTF-8 text: {cause}") from cause
    with Console(stderr=True).status(f"{name} reads the text, in float32 and in {linear}"):
        found = check_folder(folder, linear, written)
    console.print(f"{name}, {linear} against float32, {found.predictions:,} predictions:")
    console.print(
        f"  perplexity  {found.perplexity:.3f} against {found.reference_perplexity:.3f}, "
        f"{found.perplexity_change:+.2%}"
    )
    console.print(f"  mean KL     {found.mean_kl:.4f} nats")
    console.print(f"  top-1       {found.top_1:.1%} agree")
