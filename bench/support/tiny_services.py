"""Both services around tiny random models, as processes of this machine.

Knows how many there are, their limits, where they serve metrics; one may be killed and started
again. Does not know what is asked of them, and what is measured.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cli.children import Child, free_addresses

START_S = 120.0
ROWS = 4  # of each stream in one pass of a tiny model: a proposal of three tokens and one more


@dataclass(frozen=True)
class Service:
    """One process after the other at one address."""

    name: str
    child: Child
    metrics: str  # where Prometheus would ask

    async def start(self) -> None:
        """Again, after it was killed; return when it serves."""
        self.child.__enter__()
        await self.child.wait_serving(START_S)


@dataclass(frozen=True)
class TinyServices:
    verifiers: tuple[Service, ...]
    drafter: Service

    @property
    def address(self) -> str:
        return self.drafter.child.address

    @property
    def all(self) -> tuple[Service, ...]:
        return (*self.verifiers, self.drafter)

    @property
    def pids(self) -> dict[str, int]:
        return {each.name: each.child.pid for each in self.all}


@contextmanager
def tiny_services(
    console: Console,
    streams: int,
    threads: int = 1,
    *,
    verifiers: int = 1,
    verifier_options: Sequence[str] = (),
    drafter_options: Sequence[str] = (),
) -> Iterator[TinyServices]:
    """Serving until left. streams: of both services, unless the options say otherwise."""
    from bench.support.tiny import make_pair

    with tempfile.TemporaryDirectory(prefix="crossdraft-tiny-") as scratch, ExitStack() as stack:
        target, draft = make_pair(Path(scratch))
        addresses = free_addresses(2 * (verifiers + 1))
        logs = Path(scratch) / "logs"
        sizes = ["--max-sessions", str(streams), "--threads", str(threads)]
        sizes += ["--max-batch-tokens", str(max(64, ROWS * streams)), "--kv-memory-mib", "256"]
        sizes += ["--log-level", "warning"]

        def service(name: str, arguments: list[str]) -> Service:
            address, metrics = addresses.pop(), addresses.pop()
            command = [*arguments, "--metrics-listen", metrics]
            child = Child(command, address, logs / f"{name.replace(' ', '-')}.log")
            return Service(name, child, f"http://{metrics}/metrics")

        names = [f"verifier {i + 1}" for i in range(verifiers)] if verifiers > 1 else ["verifier"]
        arguments = ["verifier", "--model", str(target), *sizes, *verifier_options]
        made = tuple(service(name, arguments) for name in names)
        target_of = ",".join(each.child.address for each in made)
        if verifiers > 1:
            target_of = f"ipv4:{target_of}"
        arguments = ["drafter", "--model", str(draft), "--verifier", target_of, *sizes]
        services = TinyServices(made, service("drafter", [*arguments, *drafter_options]))
        for each in services.all:
            stack.enter_context(each.child)
        for each in services.all:
            with console.status(f"the {each.name} starts"):
                asyncio.run(each.child.wait_serving(START_S))
        yield services
