"""What the manifests promise, read from what kustomize builds. Processes: test_k8s_processes.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from cli.serving import SECTIONS
from common.engine.thread import STOP_S
from common.rpc.health import LIVENESS, READINESS
from common.settings.sources import env_name, read_file
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    SERVICES,
    Object,
    built,
    config_files,
    containers,
    deployment,
    find,
    overlay,
    pod_spec,
    ports,
    settings,
)

VERSIONS = ("1.30", "1.37")  # of Kubernetes; the oldest is docs/kubernetes.md's
ENDING_S = 15  # the last step, the last statuses, and the process itself
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
both = pytest.mark.parametrize("name", OVERLAYS)
each = pytest.mark.parametrize("service", SERVICES)


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
def test_the_probes_ask_for_names_that_health_knows(name: str, service: str) -> None:
    (container,) = pod_spec(overlay(name), service)["containers"]
    health = ports(container)["health"]
    for probe, answer in (("startup", LIVENESS), ("liveness", LIVENESS), ("readiness", READINESS)):
        assert container[f"{probe}Probe"]["grpc"] == {"port": health, "service": answer}


@both
@each
def test_starting_may_take_as_long_as_the_verifier_is_waited_for(name: str, service: str) -> None:
    (container,) = pod_spec(overlay(name), service)["containers"]
    probe = container["startupProbe"]
    budget_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert budget_s >= 600
    assert budget_s >= 2 * settings(overlay(name), "drafter")["verifier_timeout_s"]


@both
@each
def test_the_shutdown_timeline_adds_up(name: str, service: str) -> None:
    objects = overlay(name)
    spec = pod_spec(objects, service)
    (container,) = spec["containers"]
    prestop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s, limit_s = settings(objects, service)["grace_s"], spec["terminationGracePeriodSeconds"]
    assert STOP_S < ENDING_S
    assert prestop_s + grace_s + ENDING_S <= limit_s
    # Not ready is seen no later than readiness is looked at.
    assert prestop_s >= container["readinessProbe"]["periodSeconds"]
    # The comment has the same numbers.
    reported = (K8S / "base" / f"{service}.yaml").read_text()
    total = prestop_s + grace_s + ENDING_S
    assert (
        f"preStop {prestop_s} + grace_s {grace_s} + {ENDING_S} = {total} <= {limit_s}" in reported
    )


@both
@each
def test_a_hung_engine_is_seen_before_a_drain_would_end(name: str, service: str) -> None:
    table = settings(overlay(name), service)
    (container,) = pod_spec(overlay(name), service)["containers"]
    probe = container["livenessProbe"]
    assert table["stall_s"] + probe["periodSeconds"] * probe["failureThreshold"] <= 120


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


@both
@each
def test_pods_run_without_privileges(name: str, service: str) -> None:
    spec = pod_spec(overlay(name), service)
    assert spec["automountServiceAccountToken"] is False
    assert (
        find(overlay(name), "ServiceAccount", "crossdraft")["automountServiceAccountToken"] is False
    )
    own = spec["securityContext"]
    assert own["runAsNonRoot"] is True
    assert own["runAsUser"] >= 10000 and own["runAsGroup"] >= 10000
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(spec):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["limits"]) >= {"cpu", "memory"}
        assert set(container["resources"]["requests"]) >= {"cpu", "memory"}


@both
@each
def test_what_must_be_written_to_is_a_volume_and_weights_are_not(name: str, service: str) -> None:
    spec = pod_spec(overlay(name), service)
    (container,) = spec["containers"]
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    assert mounts == {"/etc/crossdraft": True, "/weights": True, "/cache": False, "/tmp": False}
    (fetch,) = spec["initContainers"]
    assert not next(m for m in fetch["volumeMounts"] if m["name"] == "weights").get("readOnly")
    assert fetch["args"] == [*container["args"], "--fetch-only"]


@each
def test_a_pod_on_cpus_takes_no_more_than_its_own(service: str) -> None:
    """What a library would take from the node's cores and free memory is set."""
    assert settings(overlay("cpu"), service)["kv_memory_mib"] > 0
    for container in containers(pod_spec(overlay("cpu"), service)):
        (threads,) = (v for v in container["env"] if v["name"] == "OMP_NUM_THREADS")
        assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
        assert container["resources"]["limits"]["cpu"].isdecimal()


@each
def test_a_pod_on_a_gpu_asks_for_one_and_shares_the_weights(service: str) -> None:
    spec = pod_spec(overlay("gpu"), service)
    (container,) = spec["containers"]
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/gpu"] == "1"
    (weights,) = (v for v in spec["volumes"] if v["name"] == "weights")
    claim = find(overlay("gpu"), "PersistentVolumeClaim", "crossdraft-weights")
    assert weights == {
        "name": "weights",
        "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
    }
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def allowed(policy: Object, direction: str) -> set[tuple[str, Any]]:
    """(who, port) of each rule; who by its last label or address."""
    found = set()
    for rule in policy["spec"].get(direction, []):
        for peer in rule["from" if direction == "ingress" else "to"]:
            who = []
            for selector in ("namespaceSelector", "podSelector"):
                labels = peer.get(selector, {}).get("matchLabels", {})
                who += list(labels.values()) or (["any namespace"] if selector in peer else [])
            who += [peer["ipBlock"]["cidr"]] if "ipBlock" in peer else []
            found |= {(" ".join(who), port["port"]) for port in rule["ports"]}
    return found


@both
def test_only_drafters_reach_verifiers_and_only_monitoring_reaches_metrics(name: str) -> None:
    objects = overlay(name)
    verifier = find(objects, "NetworkPolicy", "crossdraft-verifier")
    drafter = find(objects, "NetworkPolicy", "crossdraft-drafter")
    for policy in (verifier, drafter):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert allowed(verifier, "ingress") == {
        ("crossdraft-drafter", "grpc"),
        ("monitoring", "metrics"),
    }
    assert allowed(verifier, "egress") == set()
    assert allowed(drafter, "ingress") == {("any namespace", "grpc"), ("monitoring", "metrics")}
    dns = {("kube-system kube-dns", 53)}
    assert allowed(drafter, "egress") == {("crossdraft-verifier", "grpc"), *dns}
    fetch = find(objects, "NetworkPolicy", "crossdraft-fetch")
    assert fetch["spec"]["policyTypes"] == ["Egress"]
    assert allowed(fetch, "egress") == {("0.0.0.0/0", 443), *dns}


# Certificates: comments, until someone takes the # away.


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The base with its last lines uncommented."""
    folder = tmp_path_factory.mktemp("tls") / "base"
    shutil.copytree(K8S / "base", folder)
    file = folder / "kustomization.yaml"
    lines = file.read_text().splitlines()
    at = lines.index("# patches:")
    file.write_text("\n".join([*lines[:at], *(line.removeprefix("# ") for line in lines[at:])]))
    return built(folder)


@each
def test_services_say_what_is_spoken_to_them(with_tls: list[Object], service: str) -> None:
    """A gateway or mesh that takes TLS for cleartext HTTP/2 gets no call through."""
    for objects, spoken in ((overlay("cpu"), "kubernetes.io/h2c"), (with_tls, "https")):
        (port,) = find(objects, "Service", f"crossdraft-{service}")["spec"]["ports"]
        assert port["appProtocol"] == spoken
        kubernetes_validate.validate(
            find(objects, "Service", f"crossdraft-{service}"), VERSIONS[0], strict=True
        )


@each
def test_the_patches_for_certificates_set_settings_that_exist(
    with_tls: list[Object], service: str
) -> None:
    kubernetes_validate.validate(deployment(with_tls, service), VERSIONS[0], strict=True)
    spec = pod_spec(with_tls, service)
    (container,) = spec["containers"]
    values = {v["name"]: v.get("value") for v in container["env"]}
    names = [n for n in values if n.startswith(env_name(service, ""))]
    assert len(names) == 3
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "tls")
    fields = {name.removeprefix(env_name(service, "")).lower(): values[name] for name in names}
    for path in fields.values():
        assert path.startswith(f"{mount['mountPath']}/")
    SECTIONS[service](**fields)
    (volume,) = (v for v in spec["volumes"] if v["name"] == "tls")
    assert volume["secret"]["secretName"] == f"crossdraft-{service}-tls"
