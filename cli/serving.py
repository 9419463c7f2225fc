"""What serving either half has in common: its settings' tables, the log, the event loop.

Knows: how a configuration becomes a running service. Refuses to know: what is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from common import logs
from common.config import Sections
from common.logs import Format
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
    log.info("starting with %s", config)
    asyncio.run(serve(config, lambda port: log.info("%s serves on port %d", name, port)))
    log.info("%s stopped", name)
