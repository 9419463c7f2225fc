"""Imports point one way, and protobuf stays behind its doors. Read from the source, not run."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("common", "drafter", "verifier", "client", "cli")
OURS = (*PRODUCT, "bench", "examples", "tests")

# What each top-level package may import of the others.
BETWEEN = {
    "common": set[str](),
    "drafter": {"common"},
    "verifier": {"common"},
    "client": {"common"},
    "cli": {"common", "drafter", "verifier", "client"},
    "bench": {"common", "drafter", "verifier", "client", "cli"},
}
# What each part of common may import of the others. A part is a package, or a module beside them.
INSIDE_COMMON = {
    "errors": set[str](),
    "addresses": {"errors"},
    "causes": {"errors"},
    "version": set[str](),
    "sampling": {"errors"},
    "types": {"sampling"},
    "settings": {"errors"},
    "vocabulary": {"causes", "errors"},
    "weights": {"causes", "errors"},
    "kernels": set[str](),
    "device": {"errors"},
    "kv": {"errors"},
    "telemetry": {"addresses", "errors", "sampling", "types", "version"},
    "rpc": {"addresses", "errors", "telemetry"},
    "pb": set[str](),
    "wire": {"errors", "sampling", "types", "pb"},
    "native": set[str](),
    "model": {"causes", "errors", "device", "kernels", "kv", "native", "weights"},
    "engine": {"errors", "device", "kv", "model", "rpc", "telemetry"},
}
# `python -m verifier` is the command's own subcommand.
ENTRIES = {"verifier/__main__.py", "drafter/__main__.py"}
PB_IMPORTERS = {
    "common/wire/enums.py",
    "common/wire/generate.py",
    "common/wire/identity.py",
    "common/wire/sampling.py",
    "common/wire/verify.py",
    "drafter/generate/reply.py",
    "drafter/generate/request.py",
    "drafter/service.py",
    "drafter/verifier_client/client.py",
    "drafter/verifier_client/description.py",
    "drafter/verifier_client/session.py",
    "verifier/service.py",
    "client/client.py",
}
MODULES_IN_A_FOLDER = 15
LINES_IN_A_FILE = 250
LINES_IN_A_PACKAGE_DOCSTRING = 5


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


def module_of(source: str) -> str:
    return source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.mark.parametrize("source", sources(*BETWEEN))
def test_packages_import_one_way(source: str) -> None:
    own = source.split("/")[0]
    allowed = BETWEEN[own] | {own} | ({"cli"} if source in ENTRIES else set())
    assert {name.split(".")[0] for name in imported(source)} & set(OURS) <= allowed


@pytest.mark.parametrize("source", sources("common"))
def test_the_parts_of_common_import_one_way(source: str) -> None:
    own = module_of(source).split(".")[1:2]
    if own:
        parts = {name.split(".")[1] for name in imported(source) if name.startswith("common.")}
        assert parts <= INSIDE_COMMON[own[0]] | {own[0]}


def test_what_the_parts_of_common_may_import_has_no_cycle() -> None:
    parts = {path.stem for path in (ROOT / "common").iterdir() if path.name[0] not in "_."}
    assert parts == set(TopologicalSorter(INSIDE_COMMON).static_order())


def test_no_modules_import_each_other_in_a_cycle() -> None:
    modules = {module_of(source): source for source in sources(*OURS)}
    graph: dict[str, set[str]] = {}
    for module, source in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imported(source)}
        graph[module] = names & set(modules) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("source", sources(*PRODUCT, "bench"))
def test_only_the_doors_import_protobuf(source: str) -> None:
    uses_pb = any(name.startswith("common.pb") for name in imported(source))
    assert not uses_pb or source in PB_IMPORTERS


@pytest.mark.parametrize(
    "source",
    [
        "common/types.py",
        "common/errors.py",
        "common/sampling/parameters.py",
        "common/sampling/acceptance_rule.py",
        "common/settings/sources.py",
    ],
)
def test_the_glossary_needs_neither_torch_nor_protobuf(source: str) -> None:
    roots = {name.split(".")[0] for name in imported(source)}
    assert not roots & {"torch", "transformers", "google"}


@pytest.mark.parametrize("source", sources(*PRODUCT, "bench"))
def test_every_file_says_what_it_holds(source: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / source).read_text(encoding="utf-8")))
    assert text
    if source.endswith("__init__.py"):
        assert len(text.splitlines()) <= LINES_IN_A_PACKAGE_DOCSTRING


def test_no_folder_holds_too_many_modules() -> None:
    modules = [Path(source).parent.as_posix() for source in sources(*OURS) if "/__" not in source]
    assert max(Counter(modules).values()) <= MODULES_IN_A_FOLDER


@pytest.mark.parametrize("source", sources(*OURS))
def test_no_file_is_too_long(source: str) -> None:
    assert len((ROOT / source).read_text(encoding="utf-8").splitlines()) <= LINES_IN_A_FILE
