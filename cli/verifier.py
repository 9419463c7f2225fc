"""`crossdraft verifier`: serve the target model. How is not known here."""

from __future__ import annotations

from typing import Any

import click

from cli.serving import SECTIONS, fetch_only, run
from common.settings.sources import options
from verifier.config import VerifierConfig


@click.command("verifier")
@options("verifier", SECTIONS)
@click.option("--fetch-only", "only_fetch", is_flag=True, help="Only fetch the model, and end.")
def verifier(only_fetch: bool, **settings: Any) -> None:
    """Serve the large model: check other services' drafts against it.

    Every setting can be given as a flag, an environment variable or a key in a TOML file; a flag
    goes before the environment, and the environment before the file.
    """
    config = VerifierConfig(**settings)
    if only_fetch:
        fetch_only(config.model)
        return

    from verifier.service import serve

    run(serve, config, "verifier")
