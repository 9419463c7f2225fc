"""Generates common/pb from the protos: `python proto/generate.py [FOLDER]`, or `make protos`.

protoc's Python imports follow the protos' own paths (`crossdraft.v1`); here they become
`common.pb`. The names that messages and files have on the wire and in reflection stay the protos'
own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOS = sorted((ROOT / "proto/crossdraft/v1").glob("*.proto"))


def generate(folder: Path) -> None:
    """Write the stubs of all protos into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}"]
        command += [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run([*command, *map(str, PROTOS)], check=True)
        for stub in sorted((Path(scratch) / "crossdraft/v1").iterdir()):
            text = stub.read_text(encoding="utf-8")
            if stub.name.endswith("_grpc.py") and "Servicer" not in text:
                continue  # a proto without services
            text = text.replace("from crossdraft.v1 import", "from common.pb import")
            (folder / stub.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "common/pb")
