"""Bias, penalties and bans of a request, on draft logits: through the mapped_ids."""

from __future__ import annotations

import math

import torch

from tests.statistics.sampled_drafts import BRIDGE, WIDTH, A, B, C, processors


def test_draft_logits_change_as_their_mapped_tokens_do() -> None:
    made = processors(
        prompt=(A[0],),
        logit_bias=((B[0], 3.0),),
        repetition_penalty=2.0,
        presence_penalty=1.5,
        frequency_penalty=0.5,
    )
    row = torch.ones(WIDTH)
    after = made.applied(row, [])
    assert float(after[A[1]]) == 0.5 and float(after[B[1]]) == 4.0 and float(after[C[1]]) == 1.0
    made.commit([C[0], C[0]])
    again = made.applied(row, [B[1]])  # and one drafted
    assert float(again[C[1]]) == 0.5 - 1.5 - 2 * 0.5
    assert float(again[B[1]]) == 4.0 / 2 - 1.5 - 0.5
    assert torch.equal(row, torch.ones(WIDTH))
    assert float(made.applied(row, [])[B[1]]) == 4.0  # what was drafted only is forgotten


def test_ends_cannot_be_drafted_before_min_new_tokens() -> None:
    made = processors(ends=(A[0],), min_new_tokens=3)
    made.commit([C[0]])
    row = torch.ones(WIDTH)
    assert math.isinf(made.applied(row, [B[1]])[A[1]])
    assert not math.isinf(made.applied(row, [B[1], B[1]])[A[1]])


def test_draft_tokens_that_share_a_mapped_token_are_processed_together() -> None:
    fallback = next(
        id_ for id_ in BRIDGE.draft.byte_fallback_ids if BRIDGE.draft.token_bytes(id_) == b"a"
    )
    after = processors(presence_penalty=1.0).applied(torch.zeros(WIDTH), [fallback])
    assert float(after[A[1]]) == float(after[fallback]) == -1.0
