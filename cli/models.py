"""`crossdraft models`: which demo models there are, and which lie in the cache."""

from __future__ import annotations

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
def models(name: str | None) -> None:
    """Show the presets: models that can be had without the Hugging Face Hub.

    Wherever a model is asked for, a directory, a .gguf file or a Hub id will do as well. The cache
    is $CROSSDRAFT_CACHE, or crossdraft/ in the user's cache folder.
    """
    if name is not None:
        (folder,) = fetch([name], Console(stderr=True))
        click.echo(str(folder))
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
