"""A model whose heads and matrices are shared out over ranks, by transformers' own plan.

Rank 0 holds a LeadingModel: a PagedModel whose calls the others repeat with their own parts. Knows
how such a model is loaded, and that ranks must do the same things in the same command. Does not
know sessions, and how orders travel (common/model/ranks.py).

transformers cuts matrices by rows or columns as the model's `tp_plan` says and sums where it must;
its model code then sees fewer heads, and so does our attention: a rank's pages hold its own heads.
Weights are multiplied as torch does it, also on the CPU: its packed forms know nothing of parts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.distributed import DistributedConfig

from common.device.choice import Device
from common.errors import ConfigError, RankLost, UnsupportedModel
from common.model.batch import Chunk
from common.model.checkpoint import loading_from
from common.model.checks.row_invariance import rows_are_invariant
from common.model.paged_model import PagedModel
from common.model.ranks import Command, Ranks, decode, encode

if TYPE_CHECKING:
    from common.model.cuda_graphs import Progress

log = logging.getLogger(__name__)

_PROBE = (2, 3, 5, 9, 16)  # rows in one batch, whose bits are compared with those of rows alone


class LeadingModel(PagedModel):
    """Rank 0's part. After `lead`, the other ranks repeat every call made here."""

    _ranks: Ranks | None = None

    def lead(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def how(self) -> str:
        """What this rank holds, for the log."""
        heads = sorted({layer.kv_heads for layer in self.layers})
        own = "/".join(map(str, heads))
        return f"{own} heads of keys and values in each layer, on {self.device}"

    @property
    def plan(self) -> dict[str, str]:
        """transformers' own, of which matrix is cut how; empty if it has none."""
        return dict(self.code.tp_plan or {})

    @property
    def bytes_per_token(self) -> int:
        """Of KV cache, in one memory: ranks on one machine's processors share it."""
        own = super().bytes_per_token
        if self._ranks is None or self.device.type != "cpu":
            return own
        return own * self._ranks.place.local_world

    def allocate(self, num_pages: int, page_size: int) -> None:
        self._send(Command.ALLOCATE, [num_pages, page_size])
        super().allocate(num_pages, page_size)

    def capture_graphs(
        self,
        most_rows: int,
        most_context: int,
        progress: Progress | None = None,
        *,
        largest_only: bool = False,
    ) -> None:
        """Nothing: steps with sums over ranks are never captured, and run eagerly."""
        if self.kernels and not largest_only:
            log.warning("steps over several ranks run eagerly")

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """As PagedModel's. Raises RankLost if it can't be finished: ranks are out of step then."""
        self._send(Command.FORWARD, encode(chunks) if self._ranks else ())
        try:
            return super().forward(chunks)
        except RuntimeError as cause:
            if self._ranks is None:
                raise
            raise RankLost(f"{cause}; the step that all ranks share") from cause

    def close(self) -> None:
        """Let the other ranks end. The model can't be used any more."""
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return
        try:
            ranks.send(Command.END, ())
            ranks.part()
        except RankLost as cause:
            log.warning("%s", cause)

    def _send(self, command: Command, numbers: Sequence[int]) -> None:
        if self._ranks is not None:
            self._ranks.send(command, numbers)


def load_part(folder: Path, ranks: Ranks, device: Device, threads: int = 0) -> LeadingModel:
    """This rank's part of the model in `folder`; to be called on all ranks at once.

    `row_invariant` is what was measured on the model as it is spread. Raises ConfigError or
    UnsupportedModel if it can't be spread over so many ranks.
    """
    place = ranks.place
    if device.place.type == "cpu" and torch.accelerator.is_available():
        raise ConfigError(
            f"device is 'cpu' over {place.world} ranks, and transformers spreads models over the "
            "GPUs that it sees; hide them (CUDA_VISIBLE_DEVICES=)"
        )
    _check_heads(folder, place.world)
    spread = DistributedConfig(tp_size=place.world, tp_plan="auto")
    model = LeadingModel.load(
        folder, "plain", threads, device.place, device.dtype, distributed_config=spread
    )
    if not model.plan:
        raise UnsupportedModel(f"{model.config.model_type} has no tp_plan in transformers")
    model.row_invariant = rows_are_invariant(model, _PROBE)
    return model


def follow(model: LeadingModel, ranks: Ranks) -> None:
    """Repeat what rank 0 does until it ends. Raises RankLost if it is gone."""
    model.runtime.enter()
    while True:
        command, numbers = ranks.take()
        if command is Command.END:
            ranks.leave()
            return
        if command is Command.ALLOCATE:
            model.allocate(numbers[0], numbers[1])
        else:
            model.forward(decode(numbers))


def _check_heads(folder: Path, world: int) -> None:
    with loading_from(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    if heads % world:
        raise ConfigError(
            f"--nproc-per-node is {world}; it must divide the {heads} heads of keys and values"
        )
