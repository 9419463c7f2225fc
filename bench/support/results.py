"""Where a benchmark's files go, and how they begin.

Knows folders and JSON. Does not know what is in it.
"""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.version import VERSION

OUT = Path("bench/out")


def folder(out: Path | None, target: str, draft: str | None = None) -> Path:
    """`out`, or the pair's own folder; made if missing."""
    names = [Path(name).name for name in (draft, target) if name]
    chosen = out or OUT / "-to-".join(names)
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def write(path: Path, hardware: dict[str, Any], settings: dict[str, Any], **parts: Any) -> None:
    """One JSON object: what ran where, then the parts."""
    head = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": VERSION,
        "commit": commit(),
        "hardware": hardware,
        "settings": settings,
    }
    path.write_text(json.dumps({**head, **parts}, indent=1, default=str) + "\n")


def commit() -> str | None:
    """Of the working folder, marked if it has changes; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() or None
