"""Before a commit the same checks run as in CI's lint."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_pre_commit_hooks_are_what_make_lint_runs() -> None:
    rule = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule is not None
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in rule.group(1).splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert hooks == lint
