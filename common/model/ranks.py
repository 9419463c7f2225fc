"""Several processes that hold one model: rank 0 sends each command before it runs it.

Knows torchrun's variables, the groups that commands and goodbyes travel in, and that a rank is lost
when its connection ends. Does not know models (common/model/sharded.py) and sessions.

Orders have a group of their own over gloo, whatever the model's sums travel in: a follower waits in
it for as long as nobody asks for anything, and a lost peer ends the wait.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from common.errors import RankLost
from common.kv.pages import PageTable
from common.model.batch import Chunk

log = logging.getLogger(__name__)

GOODBYE_S = 10.0  # for a rank to say it, once it has the command to end
_NEVER = timedelta(days=3650)
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class RankInfo:
    """One process among those that torchrun started."""

    rank: int
    world: int
    local_rank: int
    local_world: int  # on this machine


def torchrun_rank() -> RankInfo | None:
    """None where this process wasn't started by torchrun, or is the only one."""
    if not all(name in os.environ for name in _VARIABLES):
        return None
    rank, world, local_rank = (int(os.environ[name]) for name in _VARIABLES[:3])
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return RankInfo(rank, world, local_rank, local_world) if world > 1 else None


class Command(IntEnum):
    """What rank 0 is about to do. The numbers that go with it are its arguments."""

    END = 0
    ALLOCATE = 1  # pages, page size
    FORWARD = 2  # a batch's chunks, see `encode`


class Ranks:
    """This process's end of the groups. Made on all ranks at once; before it, nothing is shared."""

    def __init__(self, place: RankInfo, device: torch.device) -> None:
        """device: where this rank's part runs; GPUs sum over NCCL."""
        self.place = place
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if on_gpu else "gloo")
        self._orders = dist.new_group(backend="gloo", timeout=_NEVER)
        self._goodbyes = dist.new_group(backend="gloo", timeout=_NEVER)
        self._watchers: list[threading.Thread] = []

    # --- on rank 0 ----------------------------------------------------------------------------

    def watch(self, on_loss: Callable[[RankLost], object]) -> None:
        """Call `on_loss`, on a thread of its own, for a rank that ends without goodbye."""
        for rank in range(1, self.place.world):
            watcher = threading.Thread(
                target=self._await_goodbye, args=(rank, on_loss), name=f"rank-{rank}", daemon=True
            )
            watcher.start()
            self._watchers.append(watcher)

    def _await_goodbye(self, rank: int, on_loss: Callable[[RankLost], object]) -> None:
        try:
            dist.recv(torch.empty(1, dtype=torch.int64), src=rank, group=self._goodbyes)
        except RuntimeError:
            on_loss(RankLost(f"rank {rank} of {self.place.world} has died; its part of the model"))

    def part(self) -> None:
        """After the last command: wait until everybody has said goodbye, who would else miss us."""
        for watcher in self._watchers:
            watcher.join(GOODBYE_S)

    def send(self, command: Command, numbers: Sequence[int]) -> None:
        """All other ranks take the command before the next one. Raises RankLost."""
        head = torch.tensor([command, len(numbers)])
        try:
            dist.broadcast(head, src=0, group=self._orders)
            if numbers:
                dist.broadcast(torch.tensor(numbers), src=0, group=self._orders)
        except RuntimeError as cause:
            raise RankLost("a rank takes no more commands; its part of the model") from cause

    # --- on the others ------------------------------------------------------------------------

    def take(self) -> tuple[Command, list[int]]:
        """The next command, whenever it comes. Raises RankLost if rank 0 is gone."""
        head = torch.empty(2, dtype=torch.int64)
        try:
            dist.broadcast(head, src=0, group=self._orders)
            command, count = head.tolist()
            numbers: Tensor = torch.empty(count, dtype=torch.int64)
            if count:
                dist.broadcast(numbers, src=0, group=self._orders)
        except RuntimeError as cause:
            raise RankLost("rank 0 has died; the service") from cause
        return Command(command), numbers.tolist()

    def leave(self) -> None:
        """Say goodbye to rank 0, so that it doesn't count as a loss."""
        dist.send(torch.zeros(1, dtype=torch.int64), dst=0, group=self._goodbyes)


def encode(chunks: Sequence[Chunk]) -> list[int]:
    """A batch as numbers: their count, four numbers for each chunk, then its tokens and pages.

    Pages travel with every batch, so that a follower keeps no books of its own: page numbers mean
    the same on all ranks, and what they hold are each rank's own heads.
    """
    numbers = [len(chunks)]
    for chunk in chunks:
        pages = chunk.table.pages
        numbers += [chunk.table.length, len(chunk.tokens), len(pages), chunk.logit_rows]
    for chunk in chunks:
        numbers += chunk.tokens
        numbers += chunk.table.pages
    return numbers


def decode(numbers: Sequence[int]) -> list[Chunk]:
    """The inverse of `encode`."""
    count = numbers[0]
    at = 1 + 4 * count
    chunks = []
    for place in range(count):
        length, tokens, pages, logit_rows = numbers[1 + 4 * place : 5 + 4 * place]
        table = PageTable.at_length(array("i", numbers[at + tokens : at + tokens + pages]), length)
        chunks.append(Chunk(numbers[at : at + tokens], table, logit_rows))
        at += tokens + pages
    assert at == len(numbers)
    return chunks
