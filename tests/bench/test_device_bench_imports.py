"""The device bench starts on a bare machine: torch, transformers and the wheels that it lists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITH_TRANSFORMERS = {"tokenizers", "safetensors", "numpy", "huggingface-hub"}
BARE = WITH_TRANSFORMERS | {"torch", "triton", "transformers", "accelerate", "psutil", "jinja2"}
BARE |= {"click"}
MODULES = {  # of the core dependencies, where they aren't the package's own name
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "huggingface-hub": "huggingface_hub",
    "opentelemetry-api": "opentelemetry",
    "protobuf": "google.protobuf",
    "prometheus-client": "prometheus_client",
}
SERVICES_AND_BENCH = '''
import importlib.abc, os, sys

class Missing(importlib.abc.MetaPathFinder):
    """For our own files; transformers looks for itself at what is installed here."""

    def find_spec(self, name, *rest):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        path = frame.f_code.co_filename  # a virtual environment may lie in our own folder
        if not path.startswith(os.getcwd()) or "site-packages" in path:
            return
        if any(name == gone or name.startswith(gone + ".") for gone in sys.argv[1:]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import bench.device, bench.device.stages, bench.device.summary, bench.device.tuning
import bench.device.pair.service, bench.device.pair.script
import verifier.service, verifier.startup, verifier.acceptance.device_sampler
import drafter.service, drafter.startup, drafter.engine.device_sampler
import common.rpc.server, common.telemetry.listener
'''


def normal(requirement: str) -> str:
    return re.split(r"[<>=\[ ]", requirement)[0].lower().replace("_", "-")


def test_the_services_import_nothing_but_what_is_there_or_carried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {normal(each) for each in project["dependencies"]}
    lines = (ROOT / "bench/device/wheels.txt").read_text().splitlines()
    carried = {normal(line) for line in lines if line and not line.startswith("#")}
    missing = core - BARE - carried
    assert missing == {"gguf", "rich"}
    missing |= {"grpcio-reflection", "grpc_tools", "matplotlib"}  # off here, or never a service's
    names = [MODULES.get(each, each) for each in sorted(missing)]
    done = subprocess.run(
        [sys.executable, "-c", SERVICES_AND_BENCH, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_wheels_are_of_the_versions_that_tests_run_with() -> None:
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    lines = (ROOT / "bench/device/wheels.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#") and line not in pinned] == []
