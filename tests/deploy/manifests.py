"""deploy/k8s as an installation sees it: built by kustomize, looked up by kind and name."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubectl_binary import command

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ("cpu", "gpu")
SERVICES = ("verifier", "drafter")

Object = dict[str, Any]

# Parametrized over the overlays, and over the services.
both = pytest.mark.parametrize("name", OVERLAYS)
each = pytest.mark.parametrize("service", SERVICES)
VERSIONS = ("1.30", "1.37")  # of Kubernetes; the oldest is docs/kubernetes.md's


def built(folder: Path) -> list[Object]:
    """All objects of a kustomization."""
    run = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return list(yaml.safe_load_all(run.stdout))


@cache
def overlay(name: str) -> list[Object]:
    return built(K8S / "overlays" / name)


def find(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def deployment(objects: list[Object], service: str) -> Object:
    return find(objects, "Deployment", f"crossdraft-{service}")


def pod_spec(objects: list[Object], service: str) -> Object:
    spec: Object = deployment(objects, service)["spec"]["template"]["spec"]
    return spec


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def config_files(objects: list[Object], spec: Object) -> dict[str, str]:
    """The files of the ConfigMap that the pod mounts."""
    (name,) = (v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v)
    data: dict[str, str] = find(objects, "ConfigMap", name)["data"]
    return data


def settings(objects: list[Object], service: str) -> dict[str, Any]:
    """What the TOML file says to one of the two."""
    (text,) = config_files(objects, pod_spec(objects, service)).values()
    table: dict[str, Any] = tomllib.loads(text)[service]
    return table


def ports(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}
