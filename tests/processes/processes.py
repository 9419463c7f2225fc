"""Both services as processes of their own, on tiny models, to be killed, stopped and started again.

Processes are forked from a server that has imported everything, so that one starts in a fraction of
a second; what runs in them is what `crossdraft verifier` and `crossdraft drafter` run.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cli.children import free_addresses
from drafter.config import DrafterConfig
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import files, known
from verifier.config import VerifierConfig

START_S = 120.0  # on a machine that has much else to do
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cli.main", "verifier.service", "drafter.service"])

VERIFIER: dict[str, Any] = {
    "max_context_length": 400,
    "max_batch_tokens": 64,
    "kv_memory_mib": 32,
    "threads": 1,
    "grace_s": 5.0,
}
DRAFTER: dict[str, Any] = {
    "max_batch_tokens": 64,
    "kv_memory_mib": 32,
    "threads": 1,
    "grace_s": 5.0,
    "verifier_timeout_s": START_S,
}


@cache
def folder(name: str, seed: int, template: str = "") -> str:
    """A tiny model on disk, over the tokenizer of that name."""
    path = Path(mkdtemp(prefix=f"crossdraft-{name}-"))
    knowing_model(known(name), seed=seed).save_pretrained(path)
    for file, data in files(name).files.items():
        (path / file).write_bytes(data)
    if template:
        (path / "chat_template.jinja").write_text(template)
    return str(path)


def _serve(config: Any, log: str, ready: Any) -> None:
    """In the process: what the command does, its output in `log`."""
    serve: Any
    if isinstance(config, VerifierConfig):
        from verifier.service import serve
    else:
        from drafter.service import serve

    from cli.serving import run

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)

    async def reporting(config: Any, on_ready: Callable[[int], None]) -> None:
        def reported(port: int) -> None:
            on_ready(port)
            ready.send(port)

        await serve(config, reported)

    run(reporting, config, type(config).__name__)
    sys.stdout.flush()


class ServiceProcess:
    """One process after the other at one address."""

    def __init__(self, config: Any, log: Path) -> None:
        self.config = config
        self.log = log
        self._process: Any = None

    @property
    def address(self) -> str:
        return str(self.config.listen)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return int(self._process.pid)

    async def start(self) -> None:
        """Return when it serves."""
        receiver, sender = PROCESSES.Pipe(duplex=False)
        arguments = (self.config, str(self.log), sender)
        self._process = PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        sender.close()
        try:
            there = await asyncio.to_thread(receiver.poll, START_S)
            assert there
            receiver.recv()
        except (AssertionError, EOFError):
            raise AssertionError(f"it doesn't serve:\n{self.tail()}") from None

    async def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """As the machine's going away would: no word to anybody."""
        await self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        await asyncio.to_thread(self._process.join, START_S)
        code = self._process.exitcode
        assert code is not None, f"it doesn't end:\n{self.tail()}"
        return int(code)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


class Processes:
    """All that a test starts; none outlives it. An async context manager."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[ServiceProcess] = []

    async def __aenter__(self) -> Processes:
        return self

    async def __aexit__(self, *error: Any) -> None:
        for process in self._started:
            if process._process is not None and process._process.is_alive():
                await process.kill()

    async def verifier(self, model: str = "", **settings: Any) -> ServiceProcess:
        """model: a folder; "" is the usual one."""
        config = partial(VerifierConfig, model or folder("wide", 0))
        return await self._start(config, VERIFIER, settings)

    async def drafter(self, *verifiers: str, **settings: Any) -> ServiceProcess:
        """Of the verifiers at these addresses."""
        target = verifiers[0] if len(verifiers) == 1 else f"ipv4:{','.join(verifiers)}"
        config = partial(DrafterConfig, folder("narrow", 7), target)
        return await self._start(config, DRAFTER, settings)

    async def _start(
        self, make: Callable[..., Any], defaults: dict[str, Any], settings: dict[str, Any]
    ) -> ServiceProcess:
        (address,) = free_addresses(1)
        config = make(**{"listen": address, **defaults, **settings})
        process = ServiceProcess(config, self._logs / f"{len(self._started)}.log")
        self._started.append(process)
        await process.start()
        return process
