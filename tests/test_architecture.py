"""Imports point one way, and protobuf stays behind its doors. Read from the source, not run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("common", "drafter", "verifier", "cli")
FORBIDDEN = {
    "common": {"drafter", "verifier", "cli"},
    "drafter": {"verifier", "cli"},
    "verifier": {"drafter", "cli"},
    "cli": set[str](),
}
# `python -m verifier` is the command's own subcommand.
ENTRIES = {"verifier/__main__.py", "drafter/__main__.py"}
PB_IMPORTERS = {
    "common/wire_generate.py",
    "common/wire_sampling.py",
    "common/wire_verify.py",
    "drafter/reply.py",
    "drafter/request.py",
    "drafter/service.py",
    "drafter/verifier_client.py",
    "drafter/verifier_description.py",
    "verifier/service.py",
    "cli/client.py",
}


def sources(*folders: str) -> list[str]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in paths if path.parent.name != "pb"]


def imported(source: str) -> set[str]:
    """Dotted names of all that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} imports relatively"
            assert node.module is not None
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("source", sources(*ROOMS))
def test_imports_point_one_way(source: str) -> None:
    roots = {name.split(".")[0] for name in imported(source)}
    forbidden = FORBIDDEN[source.split("/")[0]]
    if source in ENTRIES:
        forbidden = forbidden - {"cli"}
    assert not roots & forbidden


@pytest.mark.parametrize("source", sources(*ROOMS, "bench"))
def test_only_the_doors_import_protobuf(source: str) -> None:
    uses_pb = any(name.startswith("common.pb") for name in imported(source))
    assert not uses_pb or source in PB_IMPORTERS


@pytest.mark.parametrize(
    "source",
    ["common/types.py", "common/sampling.py", "common/errors.py", "common/config.py"],
)
def test_the_glossary_needs_neither_torch_nor_protobuf(source: str) -> None:
    roots = {name.split(".")[0] for name in imported(source)}
    assert not roots & {"torch", "transformers", "google"}


@pytest.mark.parametrize("source", sources(*ROOMS))
def test_every_file_says_what_it_knows(source: str) -> None:
    tree = ast.parse((ROOT / source).read_text(encoding="utf-8"))
    assert source.endswith("__init__.py") or ast.get_docstring(tree)
