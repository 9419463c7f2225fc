"""The committed stubs are what the protos generate; the protos pass buf's checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "proto/crossdraft/v1").glob("*.proto"))
BIN = Path(sys.prefix) / "bin"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    run(sys.executable, "proto/generate.py", out)
    return out


def test_there_are_protos() -> None:
    assert [proto.stem for proto in PROTOS] == ["drafter", "sampling", "verifier"]


def test_the_committed_stubs_are_what_the_protos_generate(generated: Path) -> None:
    committed = {path.name: path for path in (ROOT / "common/pb").glob("*_pb2*.py*")}
    assert set(committed) == {path.name for path in generated.iterdir()}
    for name, path in committed.items():
        same = path.read_bytes() == (generated / name).read_bytes()
        assert same, f"{name} is stale: run `make protos`"


def test_the_protos_pass_bufs_standard_lint_and_are_formatted() -> None:
    run(BIN / "buf", "lint", "proto")
    run(BIN / "buf", "format", "proto", "--diff", "--exit-code")


def test_the_protos_break_no_client_of_the_released_ones() -> None:
    run(BIN / "buf", "breaking", "proto", "--against", "proto/released.binpb")


def test_a_change_that_breaks_clients_is_found(tmp_path: Path) -> None:
    """The check above can fail: a field's number is changed in a copy."""
    folder = tmp_path / "crossdraft/v1"
    folder.mkdir(parents=True)
    for proto in PROTOS:
        text = proto.read_text(encoding="utf-8")
        text = text.replace("uint32 base_length = 2;", "uint32 base_length = 9;")
        (folder / proto.name).write_text(text, encoding="utf-8")
    (tmp_path / "buf.yaml").write_bytes((ROOT / "proto/buf.yaml").read_bytes())
    against = ROOT / "proto/released.binpb"
    command = [str(BIN / "buf"), "breaking", str(tmp_path), "--against", str(against)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "base_length" in done.stdout


def test_java_stubs_generate_from_the_folder_as_it_is(tmp_path: Path) -> None:
    run(BIN / "protoc", f"-I{ROOT / 'proto'}", f"--java_out={tmp_path}", *PROTOS)
    package = tmp_path / "io/crossdraft/v1"
    names = {path.stem for path in package.iterdir()}
    assert {"GenerateRequest", "Verdict", "Sampling", "AcceptanceRule"} <= names


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: proto.stem)
def test_go_java_and_csharp_know_the_package_of_their_stubs(proto: Path) -> None:
    """protoc-gen-go needs an import path and a package name; it isn't among our dependencies."""
    text = proto.read_text(encoding="utf-8")
    assert re.search(r'^option go_package = "[\w./-]+/v1;crossdraftv1";$', text, re.MULTILINE)
    assert 'option java_package = "io.crossdraft.v1";' in text
    assert 'option csharp_namespace = "Crossdraft.V1";' in text
