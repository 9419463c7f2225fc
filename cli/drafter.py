"""`crossdraft drafter`: serve the draft model. How is not known here."""

from __future__ import annotations

from typing import Any

import click

from cli.serving import SECTIONS, fetch_only, run
from common.settings.sources import options
from drafter.config import DrafterConfig


@click.command("drafter")
@options("drafter", SECTIONS)
@click.option("--fetch-only", "only_fetch", is_flag=True, help="Only fetch the model, and end.")
def drafter(only_fetch: bool, **settings: Any) -> None:
    """Serve text: draft with the small model, have a verifier check it.

    Every setting can be given as a flag, an environment variable or a key in a TOML file; a flag
    goes before the environment, and the environment before the file.
    """
    config = DrafterConfig(**settings)
    if only_fetch:
        fetch_only(config.model)
        return

    from drafter.service import serve

    run(serve, config, "drafter")
