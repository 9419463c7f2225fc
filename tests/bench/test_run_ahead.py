"""`bench.speed.run_ahead` as a whole: scripted drafts, the target's own output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.speed.run_ahead import RATES, main


@pytest.mark.long
def test_the_whole_tool_finds_confirmed_drafts_and_the_same_output(tmp_path: Path) -> None:
    flags = ["--streams", "1", "--turns", "1", "--output-tokens", "24", "--out", str(tmp_path)]
    output = CliRunner().invoke(main, flags)
    assert output.exit_code == 0, output.output
    rows = json.loads((tmp_path / "ahead.json").read_text())["rows"]
    assert len(rows) == 2 * len(RATES) and all(row["equal"] for row in rows)
    for row in rows:
        assert any(row["outputs"].values()) == (row["run_ahead"] == "on")
    assert max(row["outputs"]["hit"] + row["outputs"]["part"] for row in rows) > 0
