"""Width means nothing and ids mean nothing: what two tokenizers share is what counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import pytest
import torch

from client.client import Client, Output, Request
from common.model.paged_model import PagedModel
from common.types import BridgeMode, Origin, Proposal
from common.vocabulary.vocabulary import TokenizerFiles
from drafter.session import SpeculativeSession
from tests.support.fake_models import knowing_model
from tests.support.fake_services import RunningDrafter, serving_drafter, serving_verifier
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of, vocabulary

SIZE, NARROW, WIDE = 300, 304, 320  # ids of the tokenizer, rows of two models over it
PROMPTS = ("The quick brown fox", "def add(left, right):", "x", "\n\t  é 中 🙂")


@cache
def files() -> TokenizerFiles:
    made = files_of(byte_level_tokenizer(size=SIZE))
    assert vocabulary(made).width == SIZE
    return made


@cache
def swapped() -> TokenizerFiles:
    """As many ids for the same bytes, two of them the other way round."""
    parsed = json.loads(files().files["tokenizer.json"])
    vocab = parsed["model"]["vocab"]
    vocab["e"], vocab["o"] = vocab["o"], vocab["e"]
    return files_of(parsed)


def model(made: TokenizerFiles, width: int, seed: int) -> PagedModel:
    """Its head favours padded ids: of two that look opposite ways, one outdoes every real id."""
    known = vocabulary(made, pad=width - SIZE)
    weights = knowing_model(known, seed)
    head = weights.get_output_embeddings()
    assert head is not None
    with torch.no_grad():
        for padded in range(SIZE, width, 2):
            way = 100 * torch.randn(
                head.weight.shape[1], generator=torch.Generator().manual_seed(padded)
            )
            head.weight[padded], head.weight[padded + 1] = way, -way
        if width > SIZE:
            logits = weights(torch.arange(SIZE)[None], use_cache=False).logits[0]
            assert (logits.argmax(-1) >= SIZE).all()
    return PagedModel(weights)


@asynccontextmanager
async def serving(
    target: tuple[TokenizerFiles, int], draft: tuple[TokenizerFiles, int]
) -> AsyncIterator[tuple[RunningDrafter, Client]]:
    async with (
        serving_verifier(model(*target, seed=0), target[0]) as verifier,
        serving_drafter(model(*draft, seed=7), draft[0], verifier.port, lookup=False) as drafter,
        Client(drafter.address) as client,
    ):
        yield drafter, client
        await drafter.idle()
        await verifier.idle()
        drafter.assert_nothing_held()
        verifier.assert_nothing_held()


async def every_way(client: Client, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Prompts at k = 0 and drafted, to the same ids. Returns every id proposed or committed."""
    proposed: set[int] = set()
    propose = SpeculativeSession.propose

    async def noted(session: SpeculativeSession) -> Proposal:
        proposal = await propose(session)
        proposed.update(proposal.token_ids)
        return proposal

    monkeypatch.setattr(SpeculativeSession, "propose", noted)
    outputs: list[Output] = []
    for prompt in PROMPTS:
        alone = await client.generate(Request(14, prompt=prompt, draft_steps=0, ignore_eos=True))
        for mode in BridgeMode:
            outputs.append(
                await client.generate(
                    Request(14, prompt=prompt, draft_steps=4, bridge=mode, ignore_eos=True)
                )
            )
            assert outputs[-1].token_ids == alone.token_ids
            assert outputs[-1].text == alone.text
    assert sum(output.origins.count(Origin.DRAFT) for output in outputs) > 20
    return proposed.union(*(output.token_ids for output in outputs))


@pytest.mark.parametrize(("target", "draft"), [(NARROW, WIDE), (WIDE, NARROW)])
async def test_widths_that_differ_over_one_tokenizer_are_the_identity(
    target: int, draft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And padded ids are neither drafted nor committed, though both models like them best."""
    async with serving((files(), target), (files(), draft)) as (drafter, client):
        assert drafter.pair.bridge.identity
        assert max(await every_way(client, monkeypatch)) < SIZE


async def test_tokenizers_that_differ_under_equal_widths_are_bridged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving((files(), NARROW), (swapped(), NARROW)) as (drafter, client):
        bridge = drafter.pair.bridge
        assert bridge.target.width == bridge.draft.width and not bridge.identity
        e, o = bridge.target.id_of(b"e"), bridge.target.id_of(b"o")
        assert e is not None and (bridge.to_draft(e), bridge.draft.id_of(b"e")) == (o, o)
        assert max(await every_way(client, monkeypatch)) < SIZE


async def test_a_padded_id_in_a_prompt_harms_no_draft_of_a_narrower_model() -> None:
    """The target has a row for it; the draft model hasn't, and the text has no byte of it."""
    async with serving((files(), WIDE), (files(), NARROW)) as (drafter, client):
        ids = tuple(drafter.pair.bridge.target.encode_prompt(PROMPTS[0]))
        prompt = (*ids[:2], WIDE - 1, *ids[2:])
        alone = await client.generate(Request(14, prompt_ids=prompt, draft_steps=0))
        output = await client.generate(Request(14, prompt_ids=prompt, draft_steps=4))
        assert output.token_ids == alone.token_ids
        assert drafter.pair.engine.healthy and Origin.DRAFT in output.origins
