"""The pair's two processes: started, waited for by their first word, ended in every case.

Knows processes and their logs. Needs neither health nor reflection, which a bare machine may lack.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

END_S = 15.0
TAIL = 12


def free_address() -> str:
    """On loopback, with a port that was free a moment ago."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


class Child:
    """One service; a context manager."""

    def __init__(
        self, name: str, folder: Path, device: str, settings: dict[str, Any], logs: Path
    ) -> None:
        self.log = logs / f"{name}.log"
        command = [sys.executable, "-m", "bench.device.pair.service", name, str(folder), device]
        self._command = [*command, json.dumps(settings)]
        self._name = name
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Child:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("TRITON_INTERPRET", None)  # on a CPU services need no kernels
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")  # it has ended

    @property
    def pid(self) -> int:
        return self._process.pid

    def port(self, timeout_s: float) -> int:
        """Wait until it serves. Raises RuntimeError with the end of its log if it doesn't."""
        try:
            while not (line := self._said.get(timeout=timeout_s)).startswith("port "):
                if not line:
                    raise RuntimeError(f"the {self._name} ended; its log ends:\n{self.tail()}")
        except queue.Empty:
            what = f"the {self._name} isn't ready after {timeout_s:.0f} s; its log ends"
            raise RuntimeError(f"{what}:\n{self.tail()}") from None
        return int(line.split()[1])

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL:])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
