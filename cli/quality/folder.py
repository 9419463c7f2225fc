"""A model's folder, in two kinds of arithmetic, on one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.quality.measure import Quality, measure
from common.model.loading import load_model
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary


def check_folder(folder: Path, linear: Any, text: str) -> Quality:
    """Load both, in memory at once, and measure. Raises what loading raises, and ClickException."""
    model = load_model(folder, linear)
    vocabulary = Vocabulary(TokenizerFiles.from_directory(folder), model.vocab_size, model.eos_ids)
    ids = vocabulary.encode_prompt(text)
    if len(ids) < 2:
        raise click.ClickException(f"the text has {len(ids)} tokens; it must have at least 2")
    return measure(load_model(folder, "exact"), model, ids)
