"""One hash for what a model's folder holds: its configuration and weights, as stored.

Computed once (some 2 s for 3 GB) and kept beside the files, with their sizes and times, so that the
next start only looks at these. Knows files. Does not know what is in them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from common.causes import refusing
from common.errors import WeightsError

log = logging.getLogger(__name__)

KEPT = ".crossdraft-fingerprint.json"
CONFIGURATION = ("config.json", "generation_config.json")
_CHUNK = 1 << 22  # bytes read at once


def weights_sha256(folder: Path) -> str:
    """SHA-256, in hex, over names and contents of the files that decide a model's logits.

    Raises WeightsError.
    """
    with refusing(WeightsError, f"the model in {folder} can't be read"):
        files = [folder / name for name in CONFIGURATION if (folder / name).is_file()]
        files += sorted(folder.glob("*.safetensors"))
        state = [[each.name, each.stat().st_size, each.stat().st_mtime_ns] for each in files]
        kept = _kept(folder)
        if kept.get("files") == state and isinstance(kept.get("sha256"), str):
            return str(kept["sha256"])
        found = _hash(files)
    _keep(folder, {"files": state, "sha256": found})
    return found


def _hash(files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        own = hashlib.sha256()
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                own.update(chunk)
        whole.update(f"{file.name} {own.hexdigest()}\n".encode())
    return whole.hexdigest()


def _kept(folder: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        kept = json.loads((folder / KEPT).read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return kept
    return {}


def _keep(folder: Path, kept: dict[str, object]) -> None:
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            json.dump(kept, file)
        os.replace(file.name, folder / KEPT)  # whole or not at all, whoever else writes it
    except OSError as cause:  # a volume that is only read
        log.info("the hash of %s isn't kept, and is computed at each start: %s", folder, cause)
