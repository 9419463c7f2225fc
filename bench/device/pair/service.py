"""A service of the pair in a process of its own, over a model with random weights.

    python -m bench.device.pair.service verifier FOLDER DEVICE SETTINGS

SETTINGS is a JSON object of the service's own; those that this version doesn't have are left out.
The service is the product's, from start to drain, but for two things: weights are sampled instead
of loaded, and the drafter drafts what `script` says (bench/device/pair/script.py). Says `port N` on
its standard output once it serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch


def random_weights(folder: Path, device: torch.device | str, dtype: torch.dtype) -> Any:
    """A model of the folder's config; the same weights each time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)


def sample_weights() -> None:
    """From now on models aren't loaded but sampled."""
    from common.model.paged_model import PagedModel

    def load(
        folder: Path,
        packing: Any = "exact",
        threads: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> PagedModel:
        on_cpu = torch.device(device).type == "cpu"
        stored = dtype or (torch.float32 if on_cpu else torch.bfloat16)
        return PagedModel(random_weights(folder, device, stored), packing, threads, device, dtype)

    PagedModel.load = staticmethod(load)  # type: ignore[method-assign, assignment]


def known(config: type, settings: dict[str, Any]) -> dict[str, Any]:
    """Those that this version has; a GPU isn't to be overlooked."""
    names = {field.name for field in fields(config)}
    if "device" not in names and settings["device"] != "cpu":
        raise RuntimeError(f"this version's services don't run on {settings['device']}")
    return {name: value for name, value in settings.items() if name in names}


def main(name: str, folder: str, device: str, settings: dict[str, Any]) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sample_weights()
    given = {"listen": "127.0.0.1:0", **settings, "model": folder, "device": device}

    def ready(port: int) -> None:
        print(f"port {port}", flush=True)

    serve: Callable[..., Any]
    if name == "verifier":
        from verifier.config import VerifierConfig
        from verifier.service import serve

        asyncio.run(serve(VerifierConfig(**known(VerifierConfig, given)), ready))
        return
    from bench.device.pair.script import Script, ScriptedEngine
    from drafter import startup
    from drafter.config import DrafterConfig
    from drafter.service import serve

    ScriptedEngine.script = Script(Path(settings["script"]))
    startup.DraftEngine = ScriptedEngine  # type: ignore[misc]
    asyncio.run(serve(DrafterConfig(**known(DrafterConfig, given)), ready))


if __name__ == "__main__":
    name, folder, device, settings = sys.argv[1:]
    main(name, folder, device, json.loads(settings))
