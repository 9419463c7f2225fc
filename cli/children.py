"""Our own services as child processes: started, waited for, ended in every case.

Knows processes, their log files, health. Does not know what they serve.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import click
import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.rpc.channel import open_channel

POLL_S = 0.2
TAIL_LINES = 15


def free_addresses(count: int) -> list[str]:
    """Loopback addresses whose ports were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Child:
    """`crossdraft SUBCOMMAND …` in a process of its own; a context manager."""

    def __init__(self, arguments: list[str], address: str, log: Path, grace_s: float = 10) -> None:
        self.name = arguments[0]
        self.address = address
        self.log = log
        self._grace_s = grace_s
        self._command = [sys.executable, "-m", "cli", *arguments, "--listen", address]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches us alone, and we end it in our own order.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(self._grace_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """As the machine's going away would: no word to anybody. May be entered again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def memory_bytes(self) -> int:
        """That the process holds, files that it has mapped included."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def check_alive(self) -> None:
        """Raise, with the end of the log, if the process has ended."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise click.ClickException(
                f"the {self.name} ended with status {code}; the end of {self.log}:\n{self.tail()}"
            )

    async def wait_serving(
        self, timeout_s: float, waiting: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """Return when health says SERVING; calls `waiting` with the seconds meanwhile."""
        started = time.monotonic()
        async with open_channel(self.address, 2**20) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                self.check_alive()
                try:
                    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.aio.AioRpcError:
                    pass
                seconds = time.monotonic() - started
                if seconds > timeout_s:
                    raise click.ClickException(
                        f"the {self.name} isn't ready after {timeout_s:.0f} s; the end of "
                        f"{self.log}:\n{self.tail()}"
                    )
                waiting(seconds)
                await asyncio.sleep(POLL_S)
