"""The committed stubs are, byte for byte, what the protos generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "proto/crossdraft/v1").glob("*.proto"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Icommon/pb=proto/crossdraft/v1"]
    command += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    command += [f"common/pb/{proto.name}" for proto in PROTOS]
    subprocess.run(command, cwd=ROOT, check=True)
    return out / "common/pb"


def test_there_are_protos() -> None:
    assert [proto.stem for proto in PROTOS] == ["drafter", "verifier"]


@pytest.mark.parametrize("stem", [proto.stem for proto in PROTOS])
@pytest.mark.parametrize("suffix", ["_pb2.py", "_pb2.pyi", "_pb2_grpc.py"])
def test_a_committed_stub_is_what_its_proto_generates(
    generated: Path, stem: str, suffix: str
) -> None:
    name = stem + suffix
    committed = (ROOT / "common/pb" / name).read_bytes()
    assert committed == (generated / name).read_bytes(), f"{name} is stale: run `make protos`"


def test_no_stub_is_left_over(generated: Path) -> None:
    committed = {path.name for path in (ROOT / "common/pb").glob("*_pb2*.py*")}
    assert committed == {path.name for path in generated.iterdir()}
