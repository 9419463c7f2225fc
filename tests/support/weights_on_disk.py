"""Tiny models as files, where a service looks for a preset."""

from __future__ import annotations

import json
from pathlib import Path

from common.weights.resolve import FORMAT, MARKER
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import files, known


def write_preset(cache: Path, name: str, vocabulary: str, seed: int, context: int = 2048) -> None:
    """`cache`/`name` as if that preset had been fetched; inside is a model that knows some text."""
    folder = cache / name
    model = knowing_model(known(vocabulary), seed, max_position_embeddings=context)
    model.save_pretrained(folder)
    for file, data in files(vocabulary).files.items():
        (folder / file).write_bytes(data)
    (folder / MARKER).write_text(json.dumps({"format": FORMAT}))
