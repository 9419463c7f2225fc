"""What serving either half has in common: its settings' tables, the log, the event loop.

Knows how a configuration becomes a running service. Does not know what is served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Protocol, TypeVar

import click
from rich.console import Console

from cli.fetching import fetch
from common.settings.sources import Sections
from common.telemetry import logs
from common.telemetry.logs import Format
from drafter.config import DrafterConfig
from verifier.config import VerifierConfig

SECTIONS: Sections = {"verifier": VerifierConfig, "drafter": DrafterConfig}


class Logged(Protocol):
    """A configuration that says what to log."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_format(self) -> Format: ...


Config = TypeVar("Config", bound=Logged)


def run(
    serve: Callable[[Config, Callable[[int], None]], Coroutine[Any, Any, None]],
    config: Config,
    name: str,
) -> None:
    """Serve until a signal ends it."""
    logs.configure(config.log_level, config.log_format)
    log = logging.getLogger(name)
    # Until the service handles it. A container's first process ignores signals that it has no
    # handler for, and would be waited for in vain while it loads.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        log.info("starting with %s", config)
        asyncio.run(serve(config, lambda port: log.info("%s serves on port %d", name, port)))
    finally:
        signal.signal(signal.SIGTERM, before)
    log.info("%s stopped", name)


def fetch_only(model: str) -> None:
    """Download and convert what `model` names, as far as it isn't there; print where it lies."""
    (folder,) = fetch([model], Console(stderr=True))
    click.echo(str(folder))


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing is served yet, and the threads that load can't be interrupted."""
    logging.getLogger(__name__).info("asked to stop before anything was served")
    os._exit(0)
