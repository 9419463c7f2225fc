"""Who reaches whom by the manifests, and what certificates change in them."""

from __future__ import annotations

import shutil
from typing import Any

import kubernetes_validate
import pytest

from cli.serving import SECTIONS
from common.settings.sources import env_name
from tests.deploy.manifests import (
    K8S,
    VERSIONS,
    Object,
    both,
    built,
    deployment,
    each,
    find,
    overlay,
    pod_spec,
)


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
