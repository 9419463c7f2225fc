"""How many KV pages a service makes, from the memory that is there.

Knows memory and pages. Does not know who uses them.
"""

from __future__ import annotations

import logging
from typing import Protocol

import psutil

from common.errors import ConfigError
from common.kv.pages import PagePool

log = logging.getLogger(__name__)

FREE_SHARE = 0.4  # of the memory free after loading; two services may share a machine


class TakesPages(Protocol):
    """A model as far as its keys and values go."""

    @property
    def bytes_per_token(self) -> int: ...

    def allocate(self, num_pages: int, page_size: int) -> None: ...


def make_pool(
    model: TakesPages,
    page_size: int,
    memory_mib: int | None,
    max_sessions: int,
    context: int,
    *,
    shrink: bool = False,
    budget: int | None = None,
) -> PagePool:
    """A pool for `max_sessions` whole contexts, or for as much as the memory allows.

    budget: bytes for keys and values where memory_mib says nothing (common/engine/memory.py knows a
    GPU's); None is a share of the machine's free memory.
    If not even one context of `context` tokens fits: a smaller pool where `shrink` says that less
    will do, otherwise ConfigError.
    """
    page_bytes = model.bytes_per_token * page_size
    if memory_mib is not None:
        budget = memory_mib << 20
    elif budget is None:
        budget = int(psutil.virtual_memory().available * FREE_SHARE)
    wanted = max_sessions * -(-context // page_size)
    pages = min(wanted, budget // page_bytes)
    if pages * page_size < context:
        minimum = page_size if shrink else context
        needed = -(-minimum // page_size) * page_bytes
        given = f"kv_memory_mib is {memory_mib}"
        if memory_mib is None:
            given = f"{budget >> 20} MiB of memory may be used for keys and values"
        if pages < 1 or not shrink:
            remedy = "" if shrink else " (or lower max_context_length)"
            raise ConfigError(
                f"{given}; a context of {minimum} tokens needs {-(-needed >> 20)} MiB{remedy}"
            )
        log.warning("%s: the context is %d tokens instead of %d", given, pages * page_size, context)
        context = pages * page_size
    model.allocate(pages, page_size)
    log.info(
        "KV cache: %d pages of %d tokens, %d tokens in all, %d MiB at most, enough for %.1f "
        "sessions of %d tokens",
        pages,
        page_size,
        pages * page_size,
        pages * page_bytes >> 20,
        pages * page_size / context,
        context,
    )
    return PagePool(pages, page_size)
