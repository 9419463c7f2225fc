"""`crossdraft verifier`: serve the target model. How is not known here."""

from __future__ import annotations

from typing import Any

import click

from cli.serving import SECTIONS, run
from common.config import options
from verifier.config import VerifierConfig


@click.command("verifier")
@options("verifier", SECTIONS)
def verifier(**settings: Any) -> None:
    """Serve the large model: check other services' drafts against it.

    Every setting can be given as a flag, an environment variable or a key in a TOML file; a flag
    goes before the environment, and the environment before the file.
    """
    config = VerifierConfig(**settings)

    from verifier.service import serve

    run(serve, config, "verifier")
