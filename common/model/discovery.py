"""What a model is found to be before it runs: its attention layers, its ends, its place.

Knows how to ask model code by running one token. Does not know batches of real sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import AutoModelForCausalLM, PreTrainedModel

from common.errors import UnsupportedModel
from common.kv.store import LayerShape
from common.model.attention_interface import Batch
from common.model.masks import differs, named_sizes

Model = TypeVar("Model", bound=torch.nn.Module)

# How model code fails that needs a cache, an encoder, a mask or another shape of input.
_RAISED = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class AttentionCall:
    """How a layer calls attention."""

    scaling: float | None
    window: int | None
    softcap: float | None
    sinks: bool


class LayerRecorder:
    """A batch of one row that attends to nothing and remembers which layers came by."""

    def __init__(self, config: Any) -> None:
        self._sizes = named_sizes(config)
        self.shapes: dict[int, LayerShape] = {}
        self._groups: dict[int, int] = {}
        self._calls: dict[int, AttentionCall] = {}

    @property
    def layers(self) -> list[LayerShape]:
        return [self.shapes[layer] for layer in sorted(self.shapes)]

    @property
    def groups(self) -> list[int]:
        """Query heads per KV head, of each layer."""
        return [self._groups[layer] for layer in sorted(self._groups)]

    @property
    def calls(self) -> list[AttentionCall]:
        return [self._calls[layer] for layer in sorted(self._calls)]

    def check_mask(self, mask: Tensor | None, window: int | None) -> None:
        """Raise NotImplementedError unless it is the mask that our attention computes."""
        function = getattr(mask, "function", None)
        if function is None:
            return  # none, or model code's own: the comparison with eager attention has the word
        where = differs(function, window, self._sizes)
        if where:
            raise NotImplementedError(
                f"its mask is neither causal nor a sliding window of {window}: {where}"
            )

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        if key.shape != value.shape:
            # Of the kind that model code raises; discover_layers refuses the model for either.
            raise NotImplementedError("keys and values differ in shape")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[3])
        self._groups[layer] = query.shape[1] // key.shape[1]
        self._calls[layer] = AttentionCall(scaling, window, softcap, sinks is not None)
        return query.transpose(1, 2).contiguous()


@contextmanager
def refusing(config: Any, what: str) -> Iterator[None]:
    """Model code that needs other inputs, or does what ours can't, raises UnsupportedModel."""
    try:
        yield
    except _RAISED as cause:
        raise UnsupportedModel(f"{config.model_type} {what}: {cause}") from cause


def discover_layers(
    config: Any, run: Callable[[Tensor, Tensor, Batch, Tensor], Tensor], device: torch.device
) -> LayerRecorder:
    """Run one token and see what each attention layer keeps; config fields differ by family.

    Raises UnsupportedModel if the model can't run so, or keeps more than keys and values.
    """
    recorder = LayerRecorder(config)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    with refusing(config, "can't run variable-length batches through transformers' attention"):
        run(zero, zero, recorder, zero)
    if not recorder.shapes:
        raise UnsupportedModel(
            f"{config.model_type} has no attention that goes through transformers' interface"
        )
    if sorted(recorder.shapes) != list(range(int(config.num_hidden_layers))):
        raise UnsupportedModel(
            f"{config.model_type} has layers that keep no keys and values of their own"
        )
    return recorder


def restore_buffers(model: PreTrainedModel) -> None:
    """In float32 again what model code computed at construction, as Gemma's embedding scale.

    It was rounded to the dtype of the weights; it is taken from a copy of the model without
    weights.
    """
    with init_empty_weights(include_buffers=False):
        copy = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    stored = set(model.state_dict())
    for name, buffer in copy.named_buffers():
        if name not in stored:
            model.get_buffer(name).data = buffer


def move(model: Model, device: torch.device, dtype: torch.dtype) -> Model:
    """Weights to `device` and `dtype`, one by one; buffers, as rotary frequencies, keep theirs.

    Of a model spread over ranks some are DTensors, which get replacements: set their `data`, and
    the wrapper has the new dtype while the part that it wraps keeps the old one.
    """
    replacements: dict[Tensor, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not is_traceable_wrapper_subclass(parameter):
                parameter.data = parameter.data.to(device, dtype)
                continue
            if parameter not in replacements:  # tied ones stay one
                moved = parameter.detach().to(device, dtype)
                replacements[parameter] = torch.nn.Parameter(moved, parameter.requires_grad)
            module._parameters[name] = replacements[parameter]
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
    return model


def follows_positions(config: Any) -> bool:
    """Whether rotary frequencies are looked up by a batch's longest position, in each pass.

    "dynamic" asks the device and waits for its answer; "longrope" did so in some versions of
    transformers. A CUDA graph can do neither.
    """
    return bool(_rope_types(config) & {"dynamic", "longrope"})


def longest_context(config: Any) -> int:
    """Tokens that the model has positions for.

    Beyond its original length "longrope" takes other frequencies for the whole batch as soon as one
    sequence in it is so long: sessions would change each other's distribution, so it ends there.
    """
    longest = int(getattr(config, "max_position_embeddings", 2**31))
    if "longrope" not in _rope_types(config):
        return longest
    original = (config.rope_parameters or {}).get("original_max_position_embeddings")
    return min(longest, int(original or longest))


def _rope_types(config: Any) -> set[str]:
    """Of all kinds of layers."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    return {str(each["rope_type"]) for each in kinds if "rope_type" in each}


def usual_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """Every id that the model's files call an end of sequence.

    Raises UnsupportedModel for one that the logits don't have: no row could be processed by it.
    """
    width = int(model.config.get_text_config().vocab_size)
    found: set[int] = set()
    for source in (model.config, model.config.get_text_config(), model.generation_config):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    for each in found:
        if not (isinstance(each, int) and 0 <= each < width):
            raise UnsupportedModel(
                f"eos_token_id of this {model.config.model_type} is {each}; it must be from 0 to "
                f"{width - 1}, which are the ids of its logits"
            )
    return frozenset(found)
