"""`crossdraft drafter`: serve the draft model. How is not known here."""

from __future__ import annotations

from typing import Any

import click

from cli.serving import SECTIONS, run
from common.config import options
from drafter.config import DrafterConfig


@click.command("drafter")
@options("drafter", SECTIONS)
def drafter(**settings: Any) -> None:
    """Serve text: draft with the small model, have a verifier check it.

    Every setting can be given as a flag, an environment variable or a key in a TOML file; a flag
    goes before the environment, and the environment before the file.
    """
    config = DrafterConfig(**settings)

    from drafter.service import serve

    run(serve, config, "drafter")
