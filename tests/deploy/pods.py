"""Pods of deploy/k8s as processes on this machine: command, arguments, environment, files, probes.

A pod's address is one of loopback's, with the ports that the manifest says. Two settings are given
on top, in place of a pod's own network: where it listens, and which name server it uses.
"""

from __future__ import annotations

import math
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.channel import open_channel
from common.settings.sources import env_name
from tests.deploy import dockerfile
from tests.deploy.manifests import Object, config_files, pod_spec, ports, settings
from tests.deploy.sandbox import Mount, Sandboxed

PROBE_TIMEOUT_S = 1  # Kubernetes' default


class Pod:
    """One pod of a Deployment, with its volumes under `folder`."""

    def __init__(
        self,
        objects: list[Object],
        service: str,
        address: str,
        folder: Path,
        extra: dict[str, str] | None = None,
    ) -> None:
        self.service, self.address, self._folder = service, address, folder
        self._objects = objects
        self.spec = pod_spec(objects, service)
        (self.container,) = self.spec["containers"]
        self._extra = extra or {}
        self._user: int = self.spec["securityContext"]["runAsUser"]
        self._volumes = {volume["name"]: self._volume(volume) for volume in self.spec["volumes"]}
        self.weights = self._volumes["weights"]

    def own_volumes(self) -> None:
        """What fsGroup makes of the volumes, once they hold what they should."""
        if os.geteuid() != 0:
            return
        group = self.spec["securityContext"]["fsGroup"]
        for volume in self._volumes.values():
            for path in (volume, *volume.rglob("*")):
                os.chown(path, 0, group)
                path.chmod(0o2770 if path.is_dir() else 0o660)

    def fetching(self) -> Sandboxed:
        """Its initContainer."""
        (container,) = self.spec["initContainers"]
        return self._process(container)

    def serving(self) -> Sandboxed:
        """Its container."""
        table = settings(self._objects, self.service)
        network = {
            env_name(self.service, key): table[key].replace("0.0.0.0", self.address)
            for key in ("listen", "health_listen", "metrics_listen")
        }
        return self._process(self.container, {**network, **self._extra})

    def target(self, port: str = "grpc") -> str:
        return f"{self.address}:{ports(self.container)[port]}"

    async def probe(self, kind: str) -> bool:
        """Once, as the node's agent does it: a connection of its own."""
        probe = self.container[f"{kind}Probe"]
        address = f"{self.address}:{probe['grpc']['port']}"
        request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
        async with open_channel(address, 2**16) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(
                    request, timeout=probe.get("timeoutSeconds", PROBE_TIMEOUT_S)
                )
            except grpc.aio.AioRpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def budget_s(self, kind: str) -> float:
        """How long a probe may fail before something is done about it."""
        probe = self.container[f"{kind}Probe"]
        return float(probe["periodSeconds"] * probe["failureThreshold"])

    async def watch(self, stack: AsyncExitStack) -> Any:
        """A stream of what readiness says."""
        channel = await stack.enter_async_context(open_channel(self.target("health"), 2**16))
        name = self.container["readinessProbe"]["grpc"]["service"]
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Watch(health_pb2.HealthCheckRequest(service=name))

    def _process(self, container: Object, network: dict[str, str] | None = None) -> Sandboxed:
        command = [*container["command"], *container["args"]]
        environment = {v["name"]: _value(v, container) for v in container["env"]}
        image = dockerfile.environment(self.service)
        mounts = [
            Mount(self._volumes[m["name"]], m["mountPath"], m.get("readOnly", False))
            for m in container["volumeMounts"]
        ]
        scratch = self._folder / container["name"]
        everything = {**image, **environment, **(network or {})}
        return Sandboxed(command, everything, mounts, self._user, scratch)

    def _volume(self, volume: Object) -> Path:
        folder = self._folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        if "configMap" in volume:
            for name, text in config_files(self._objects, self.spec).items():
                (folder / name).write_text(text)
        return folder


def _value(variable: Object, container: Object) -> str:
    if "value" in variable:
        return str(variable["value"])
    kind, resource = variable["valueFrom"]["resourceFieldRef"]["resource"].split(".")
    assert (kind, resource) == ("limits", "cpu")
    return str(math.ceil(float(container["resources"][kind][resource])))
