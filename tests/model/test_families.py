"""What is served is the model: every causal family gives model code's own logits, or is refused."""

from __future__ import annotations

import pytest
import torch

from common.errors import UnsupportedModel
from common.model import attention_interface
from common.model.checks import eager_check
from common.model.paged_model import PagedModel
from tests.model.thread_bits import ODD, assert_no_bit_changes
from tests.model.tiny_families import FAMILIES, MOST_PARAMETERS, tiny_model

EQUAL = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt_oss", "gpt2", "phi3")
REFUSED = {
    "llama4_text": "neither causal nor a sliding window",  # chunked attention
    "bert": "isn't causal",
    "falcon": "no attention that goes through transformers' interface",  # alibi or its own
    "deepseek_v3": "keys and values differ in shape",
    "mamba": "can't run variable-length batches",
    "bart": "logits differ by",  # counts positions from the batch's first row
    "diffllama": "logits differ by",  # attends twice with one layer's keys and other values
}
# What tiny sizes can't build: their configuration or class refuses such sizes, or needs packages or
# parts (encoders, images) that a text model has no use for.
NOT_BUILT = {
    "blt", "cohere_compass_text", "dbrx", "gemma3n", "gemma4_assistant", "lfm2_moe", "musicgen",
    "musicgen_melody", "qwen4_exp", "qwen4_exp_text", "reformer",
    # sizes of each layer, which can't be set for all of them
    "dots3_note", "dots3_note_text", "gemma4", "gemma4_text", "gemma4_unified",
    "gemma4_unified_assistant", "gemma4_unified_text",
    "moss_transcribe_diarize", "phi4_multimodal",  # hundreds of millions of parameters beside
}  # fmt: skip


def served_or_refused(family: str, feed_forward: int = 48) -> tuple[PagedModel | None, str]:
    """Served means that the comparison with eager attention passed; else why it isn't."""
    model = tiny_model(family, feed_forward)
    assert sum(each.numel() for each in model.parameters()) < MOST_PARAMETERS
    try:
        return PagedModel(model), ""
    except UnsupportedModel as refusal:
        return None, str(refusal)


@pytest.mark.parametrize("family", EQUAL)
def test_families_that_are_often_served_give_model_codes_own_logits(family: str) -> None:
    model, _ = served_or_refused(family)
    assert model is not None
    assert model.row_invariant is (family != "gpt_oss")  # experts' products aren't packed


@pytest.mark.parametrize("family", REFUSED)
def test_what_our_attention_does_not_compute_is_refused_by_name(family: str) -> None:
    _, refusal = served_or_refused(family)
    assert refusal.startswith(family) and REFUSED[family] in refusal


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", [each for each in FAMILIES if each not in NOT_BUILT])
def test_every_causal_family_is_equal_or_refused_by_name_and_keeps_the_bits_it_claims(
    family: str, restored_threads: None
) -> None:
    torch.set_num_threads(3)
    model, refusal = served_or_refused(family, feed_forward=ODD)
    if model is None:
        named = refusal.split()[0].rstrip(":").replace("-", "_")
        known_as = family.replace("-", "_").split("_")[0][:3]
        assert named.startswith(known_as) or (family, named) == ("got_ocr2", "qwen2")
    elif model.row_invariant:
        assert_no_bit_changes(model)


def test_an_attention_that_computes_something_else_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison itself: one wrong scale, and the model is refused with both numbers."""
    from common.model.cpu import attention

    attend = attention._attend_row
    monkeypatch.setattr(attention, "_attend_row", lambda q, *rest: attend(q * 1.1, *rest))
    with pytest.raises(UnsupportedModel, match=r"differ by .* is allowed, so it isn't served"):
        PagedModel(tiny_model("llama"))


def test_sinks_take_part_in_the_softmax() -> None:
    model = tiny_model("gpt_oss")
    paged = PagedModel(model)
    prompt = eager_check.prompt_of(paged.vocab_size, (8,), 256)
    with_own = eager_check.eager_logits(model, attention_interface.NAME, prompt)
    eager_check.check(paged, "gpt_oss", prompt, with_own, torch.float32)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(50.0)  # takes nearly all probability
    with pytest.raises(UnsupportedModel):
        eager_check.check(paged, "gpt_oss", prompt, with_own, torch.float32)
    with_others = eager_check.eager_logits(model, attention_interface.NAME, prompt)
    eager_check.check(paged, "gpt_oss", prompt, with_others, torch.float32)
