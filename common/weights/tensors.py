"""Whether a checkpoint has the model's tensors: all of them, no others, of their shapes, finite.

transformers fills what is missing with random numbers, other ones in each process. Knows names and
values of tensors. Does not know files.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers import PreTrainedModel

from common.errors import WeightsError

_NAMED = 5  # tensors that a message names


def check_tensors(model: PreTrainedModel, loading: Any) -> None:
    """loading: from_pretrained's loading info. Raises WeightsError, which names the tensors.

    Tied tensors, and those that the model's class says may be left out, aren't missing.
    """
    kinds = {
        "lacks": loading["missing_keys"],
        "has tensors that this model doesn't know:": loading["unexpected_keys"],
        "has tensors of another shape:": [
            f"{name} {list(found)} instead of {list(wanted)}"
            for name, found, wanted in loading["mismatched_keys"]
        ],
        "has tensors with NaN or infinity:": _not_finite(model),
    }
    found = [f"{what} {_listed(names)}" for what, names in kinds.items() if names]
    if found:
        family = model.config.model_type
        raise WeightsError(f"the checkpoint of this {family} model {'; it '.join(found)}")


def _not_finite(model: PreTrainedModel) -> list[str]:
    names = []
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.numel() and local.is_floating_point():
            lowest, highest = torch.aminmax(local.detach())  # one reading; NaN passes through
            if not bool(torch.isfinite(lowest) & torch.isfinite(highest)):
                names.append(name)
    return names


def _listed(names: Collection[str]) -> str:
    first = ", ".join(sorted(map(str, names))[:_NAMED])
    more = len(names) - _NAMED
    return f"{first} and {more} more" if more > 0 else first
