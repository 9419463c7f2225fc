"""What the manifests promise, read from what kustomize builds. Processes: test_k8s_processes.py."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

from cli.serving import SECTIONS
from common.settings.sources import read_file
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    VERSIONS,
    Object,
    both,
    config_files,
    containers,
    deployment,
    each,
    find,
    overlay,
    pod_spec,
    ports,
    settings,
)

KINDS = {
    "Namespace": 1,
    "ServiceAccount": 1,
    "ConfigMap": 1,
    "Deployment": 2,
    "Service": 2,
    "PodDisruptionBudget": 2,
    "HorizontalPodAutoscaler": 2,
    "NetworkPolicy": 3,
}


@pytest.mark.parametrize("version", VERSIONS)
@both
def test_every_object_is_valid(name: str, version: str) -> None:
    for each_ in overlay(name):
        assert kubernetes_validate.validate(each_, version, strict=True) == version


def test_validation_refuses_what_it_does_not_know() -> None:
    wrong: Object = {**deployment(overlay("cpu"), "verifier")}
    wrong["spec"] = {**wrong["spec"], "replica": 3}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@both
def test_the_objects_are_those_that_the_page_names(name: str) -> None:
    kinds = [o["kind"] for o in overlay(name)]
    expected = {**KINDS, **({"PersistentVolumeClaim": 1} if name == "gpu" else {})}
    assert {kind: kinds.count(kind) for kind in kinds} == expected
    for o in overlay(name):
        assert o["kind"] == "Namespace" or o["metadata"]["namespace"] == "crossdraft"


def test_there_are_two_overlays_and_no_more() -> None:
    assert sorted(path.name for path in (K8S / "overlays").iterdir()) == sorted(OVERLAYS)


# The file is the one that the command line reads.


@both
@each
def test_the_config_file_is_one_that_the_command_reads(
    name: str, service: str, tmp_path: Path
) -> None:
    objects = overlay(name)
    ((file, text),) = config_files(objects, pod_spec(objects, service)).items()
    path = tmp_path / file
    path.write_text(text)
    SECTIONS[service](**read_file(path, SECTIONS)[service])  # every key known, every value allowed
    for container in containers(pod_spec(objects, service)):
        assert container["command"] == ["crossdraft"]
        assert container["args"][:2] == [service, f"--config=/etc/crossdraft/{file}"]


@both
@each
def test_ports_are_those_that_the_file_says(name: str, service: str) -> None:
    objects = overlay(name)
    (container,) = pod_spec(objects, service)["containers"]
    table, named = settings(objects, service), ports(container)
    assert table["listen"] == f"0.0.0.0:{named['grpc']}"
    assert table["health_listen"] == f"0.0.0.0:{named['health']}"
    assert table["metrics_listen"] == f"0.0.0.0:{named['metrics']}"
    annotations = deployment(objects, service)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(named["metrics"])
    (port,) = find(objects, "Service", f"crossdraft-{service}")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (named["grpc"], "grpc")


@both
def test_drafters_find_verifiers_by_a_headless_service(name: str) -> None:
    objects = overlay(name)
    service = find(objects, "Service", "crossdraft-verifier")
    assert service["spec"]["clusterIP"] == "None"
    port = service["spec"]["ports"][0]["port"]
    assert settings(objects, "drafter")["verifier"] == f"dns:///crossdraft-verifier:{port}"
    # Addresses are looked up again when connections come of age.
    assert settings(objects, "verifier")["max_connection_age_s"] > 0


@both
@each
def test_selectors_select_the_pods_they_are_for(name: str, service: str) -> None:
    objects, own = overlay(name), {"app.kubernetes.io/name": f"crossdraft-{service}"}
    template = deployment(objects, service)["spec"]["template"]
    assert own.items() <= template["metadata"]["labels"].items()
    assert deployment(objects, service)["spec"]["selector"] == {"matchLabels": own}
    assert find(objects, "Service", f"crossdraft-{service}")["spec"]["selector"] == own
    budget = find(objects, "PodDisruptionBudget", f"crossdraft-{service}")["spec"]
    assert budget["selector"] == {"matchLabels": own}
    policy = find(objects, "NetworkPolicy", f"crossdraft-{service}")["spec"]
    assert policy["podSelector"] == {"matchLabels": own}
    for spread in template["spec"]["topologySpreadConstraints"]:
        assert spread["labelSelector"] == {"matchLabels": own}


# Starting, stopping, scaling.


@both
@each
def test_the_autoscaler_follows_a_gauge_of_that_service(name: str, service: str) -> None:
    objects = overlay(name)
    spec = find(objects, "HorizontalPodAutoscaler", f"crossdraft-{service}")["spec"]
    assert spec["scaleTargetRef"]["name"] == deployment(objects, service)["metadata"]["name"]
    assert "replicas" not in deployment(objects, service)["spec"]
    assert spec["minReplicas"] >= 2  # so that the disruption budget leaves one
    (metric,) = spec["metrics"]
    gauge = {"verifier": "crossdraft_verifier_sessions", "drafter": "crossdraft_drafter_streams"}
    assert metric["pods"]["metric"]["name"] == gauge[service]
    average = int(metric["pods"]["target"]["averageValue"])
    assert 2 * average == settings(objects, service)["max_sessions"]  # half, as the page says


# What a pod may do.


# Certificates: comments, until someone takes the # away.
