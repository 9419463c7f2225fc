"""Who reaches whom by the manifests, and what certificates change in them."""

from __future__ import annotations

import re
import shutil
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from cli.serving import SECTIONS
from common.settings.sources import env_name
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    ROOT,
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


def uncomment(file: Path, first: str) -> None:
    """Take the # from this line to the last."""
    lines = file.read_text().splitlines()
    at = lines.index(first)
    file.write_text("\n".join([*lines[:at], *(line.removeprefix("# ") for line in lines[at:])]))


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


@pytest.fixture(scope="module", params=OVERLAYS)
def with_components(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Object], list[Object]]:
    """An overlay, and the same with the last lines uncommented."""
    folder = tmp_path_factory.mktemp("components") / "k8s"
    shutil.copytree(K8S, folder)
    uncomment(folder / "overlays" / request.param / "kustomization.yaml", "# components:")
    return overlay(request.param), built(folder / "overlays" / request.param)


def test_the_components_let_a_nodes_dns_cache_and_ipv6_through(
    with_components: tuple[list[Object], list[Object]],
) -> None:
    plain, objects = with_components
    added = [each for each in objects if each not in plain]
    assert [each["kind"] for each in added] == ["NetworkPolicy", "NetworkPolicy"]
    assert len(objects) == len(plain) + len(added), "nothing else has changed"
    fetch = find(plain, "NetworkPolicy", "crossdraft-fetch")
    for policy in added:
        kubernetes_validate.validate(policy, VERSIONS[0], strict=True)
        assert policy["metadata"]["namespace"] == fetch["metadata"]["namespace"]
        assert policy["metadata"]["labels"] == fetch["metadata"]["labels"]
        assert policy["spec"]["podSelector"] == fetch["spec"]["podSelector"]
        assert policy["spec"]["policyTypes"] == ["Egress"]
    dns = find(objects, "NetworkPolicy", "crossdraft-node-local-dns")
    assert allowed(dns, "egress") == {("169.254.20.10/32", 53)}
    (rule,) = dns["spec"]["egress"]
    assert {port["protocol"] for port in rule["ports"]} == {"UDP", "TCP"}
    ipv6 = find(objects, "NetworkPolicy", "crossdraft-fetch-ipv6")
    assert allowed(ipv6, "egress") == {("::/0", 443)}


def test_every_component_is_named_where_it_is_looked_for() -> None:
    names = sorted(path.name for path in (K8S / "components").iterdir())
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert names and all(f"| `{name}` |" in page for name in names)
    for overlay_name in OVERLAYS:
        file = (K8S / "overlays" / overlay_name / "kustomization.yaml").read_text()
        assert sorted(re.findall(r"#   - \.\./\.\./components/(\S+)", file)) == names


def test_no_private_network_is_reached_by_fetching(
    with_components: tuple[list[Object], list[Object]],
) -> None:
    blocks = [
        peer["ipBlock"]
        for policy in with_components[1]
        if policy["kind"] == "NetworkPolicy" and "fetch" in policy["metadata"]["name"]
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    for address in (
        "10.1.2.3",
        "192.168.1.1",
        "169.254.169.254",
        "fd00::1",
        "fe80::1",
        "fd00:ec2::254",
    ):
        of_family = [b for b in blocks if (":" in b["cidr"]) == (":" in address)]
        assert len(of_family) == 1
        assert any(ip_address(address) in ip_network(net) for net in of_family[0]["except"])


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The base with its last lines uncommented."""
    folder = tmp_path_factory.mktemp("tls") / "base"
    shutil.copytree(K8S / "base", folder)
    file = folder / "kustomization.yaml"
    uncomment(file, "# patches:")
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
