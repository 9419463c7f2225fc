"""The target over several ranks, as torchrun starts them: rank 0 serves, the others follow it.

Knows which rank does what, and whom a signal concerns. Does not know how a model is cut up
(common/model/sharded.py) and sessions.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
from pathlib import Path

import torch

from common.device.choice import Device, choose_device
from common.errors import ConfigError, RankLost
from common.model.language_model import LanguageModel
from common.model.loading import load_model
from common.model.ranks import RankInfo, Ranks, torchrun_rank
from common.weights.resolve import resolve
from verifier.config import VerifierConfig
from verifier.engine import VerifierEngine

log = logging.getLogger(__name__)

END_S = 30.0  # that a service has to end in order after a rank was lost


def load_target(config: VerifierConfig, folder: Path) -> tuple[LanguageModel, Device, Ranks | None]:
    """The target, where it runs, and the ranks that follow it, if torchrun started some."""
    place = torchrun_rank()
    device = _device(config, place)
    log.info("%s on %s", config.model, device)
    if config.linear == "int8" and (place is not None or device.place.type != "cpu"):
        runs_on = f"{device.place}" if place is None else f"{place.world} ranks"
        raise ConfigError(
            f"linear is int8, the model runs on {runs_on}; int8 is for one CPU process: it must be "
            "exact, fp16 or plain"
        )
    if place is None:
        where = (device.place, device.dtype)
        return load_model(folder, config.linear, config.threads, *where), device, None
    from common.model.sharded import load_part  # transformers' parallel code takes seconds

    ranks = Ranks(place, device.place)
    model = load_part(folder, ranks, device, config.threads)
    model.lead(ranks)
    log.info("rank 0 of %d serves; %s", place.world, model.how)
    return model, device, ranks


def watch(ranks: Ranks | None, engine: VerifierEngine) -> None:
    """Have the engine die, and the service end, with the first rank that is lost.

    At once, from the watching thread: the engine's own may be waiting for that rank in a sum, over
    NCCL without end. A process that hasn't ended by then is ended, since such a wait can hold up
    an orderly end too.
    """

    def end(cause: RankLost) -> None:
        engine.die_of(cause)
        faulthandler.dump_traceback_later(END_S, exit=True)

    if ranks is not None:
        ranks.watch(end)


async def follow_rank_0(config: VerifierConfig, place: RankInfo) -> None:
    """Hold a part of the target until rank 0 ends. Raises RankLost if it is gone."""
    from common.model.sharded import LeadingModel, follow, load_part

    def load() -> tuple[LeadingModel, Ranks]:
        device = _device(config, place)
        ranks = Ranks(place, device.place)
        return load_part(resolve(config.model), ranks, device, config.threads), ranks

    model, ranks = await asyncio.to_thread(load)
    # From here on signals are rank 0's: it drains, and its end is everybody's.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    log.info("rank %d of %d follows; %s", place.rank, place.world, model.how)
    await asyncio.to_thread(follow, model, ranks)
    log.info("rank %d ends with rank 0", place.rank)


def _device(config: VerifierConfig, place: RankInfo | None) -> Device:
    """As configured; each rank has a GPU of its own."""
    if place is None or config.device == "cpu":
        return choose_device(config.device, config.dtype)
    if config.device not in ("auto", "cuda"):
        raise ConfigError(
            f"device is {config.device!r}; under torchrun each rank takes a GPU of its own, so it "
            "must be auto, cpu or cuda"
        )
    gpus = torch.cuda.is_available() or config.device == "cuda"
    return choose_device(f"cuda:{place.local_rank}" if gpus else "cpu", config.dtype)
