"""What the manifests promise of each pod: probes, its end, privileges, volumes, resources."""

from __future__ import annotations

from common.engine.thread import STOP_S
from common.rpc.health import LIVENESS, READINESS
from tests.deploy.manifests import (
    K8S,
    both,
    containers,
    each,
    find,
    overlay,
    pod_spec,
    ports,
    settings,
)

ENDING_S = 15  # the last step, the last statuses, and the process itself


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
