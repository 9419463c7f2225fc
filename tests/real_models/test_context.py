"""Real models: the draft model reads exactly the committed bytes."""

from __future__ import annotations

import pytest

from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import LIVE_LIMIT, DraftContext, Encoding
from tests.drafter.bridge.test_context import ENCODINGS, encoded_sizes


@pytest.mark.models
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("target_name", "draft_name"),
    [
        ("qwen2.5-coder-1.5b", "smollm2-135m"),
        ("gemma-3-270m", "smollm2-135m"),
        ("smollm2-135m", "qwen2.5-coder-0.5b"),
        ("qwen2.5-coder-1.5b", "gemma-3-270m"),
    ],
)
def test_real_pairs_read_the_committed_bytes(
    target_name: str, draft_name: str, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (
        Vocabulary(TokenizerFiles.from_directory(resolve(name)), width, ())
        for name, width in ((target_name, 262144), (draft_name, 262144))
    )
    bridge = Bridge(target, draft)
    text = (
        "def f(x):\n\treturn x  # 'é e\u0301 中 🙂👍🏽 똻' <|im_end|>\n\n        y = [1, 2, 345]\n"
    )
    ids = target.encode_bytes(text.encode()) or []
    prompt = target.encode_prompt("Once upon a time")
    context = DraftContext(bridge, prompt, encoding)
    sizes = encoded_sizes(draft, monkeypatch)
    for token_id in ids * 10:
        context.extend([token_id])
        read = context.ids()
    assert len(sizes) <= 2 * len(ids) * 10 and max(sizes) < 2 * LIVE_LIMIT
    assert read is not None
    if draft.prompt_bos is not None:
        assert read.pop(0) == draft.prompt_bos
    assert draft.bytes_of(read) == ("Once upon a time" + text * 10).encode()
