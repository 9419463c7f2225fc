"""What draft tokens are sampled from, the request's distribution on the masked draft; and q."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from common.sampling.distribution import probabilities
from common.sampling.rng import Purpose, exponential, seed_word
from common.types import Proposal, SparseDistribution
from common.wire.verify import proposal_to_pb
from drafter.bridge.bridge import NO_TARGET_ID
from drafter.engine.sampling import in_target_ids, one_hot
from drafter.engine.tokens import sample_rows
from tests.statistics.sampled_drafts import (
    BRIDGE,
    COUPLED,
    INTERSECTION,
    REJECTION,
    TARGET_ONLY,
    TEXT,
    WIDTH,
    A,
    B,
    C,
    logits,
    processors,
    samples_of,
    sampling,
)
from tests.support.fake_drafts import DrivenEngine

PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1, "temperature": 2.0},
    {"top_k": 10**6, "top_p": 0.9, "min_p": 0.02},
)


@pytest.mark.parametrize("params", PARAMS)
def test_a_distribution_is_the_requests_own_on_the_shared_tokens_cut_and_renormalised(
    params: dict[str, Any],
) -> None:
    row = logits(3)
    sampled = sample_rows(row, [BRIDGE.shared], [samples_of(sampling(REJECTION, **params))], [0])[0]
    assert sampled is not None and sampled.distribution is not None
    masked = row.masked_fill(~BRIDGE.shared, -math.inf)
    own = probabilities(
        masked,
        torch.tensor([params.get("temperature", 1.0)]),
        torch.tensor([min(params.get("top_k", WIDTH), WIDTH)]),
        torch.tensor([params.get("top_p", 1.0)]),
        torch.tensor([params.get("min_p", 0.0)]),
    )[0].double()
    kept = own.argsort(descending=True)[: len(sampled.distribution.ids)]
    assert set(kept.tolist()) == set(sampled.distribution.ids)
    assert len(kept) == min(64, int((own > 0).sum()))
    expected = own / own[kept].sum()
    for draft_id, probability in zip(
        sampled.distribution.ids, sampled.distribution.probabilities, strict=True
    ):
        assert probability == pytest.approx(float(expected[draft_id]), rel=1e-5)
    assert sampled.token in sampled.distribution.ids


def test_every_row_of_a_batch_is_sampled_as_alone() -> None:
    made = [
        sampling(REJECTION, seed=3),
        sampling(COUPLED, seed=3, top_p=0.9),
        sampling(REJECTION, seed=4, temperature=0.5),
        sampling(COUPLED, seed=2**63, top_k=4),
    ]
    specs = [samples_of(each) for each in made]
    scores = logits(5, 4)
    masks = [BRIDGE.shared, BRIDGE.draft_real, BRIDGE.shared, BRIDGE.shared]
    steps = [0, 3, 1, 2]
    together = sample_rows(scores, masks, specs, steps)
    for row in range(4):
        alone = sample_rows(scores[[row]], [masks[row]], [specs[row]], [steps[row]])
        assert alone == [together[row]]
    assert [found is not None and found.distribution is not None for found in together] == [
        True,
        False,
        True,
        False,
    ]


def test_what_is_sampled_follows_the_distribution_that_is_sent() -> None:
    """Over 20,000 drafts; ids that share a mapped_id are sampled apart, and add up."""
    row = torch.full((WIDTH,), -50.0)
    byte, letter = BRIDGE.draft.byte_fallback_ids, BRIDGE.draft.id_of(b"a")
    fallback = next(id_ for id_ in byte if BRIDGE.draft.token_bytes(id_) == b"a")
    assert letter is not None and BRIDGE.mapped_id(letter) == BRIDGE.mapped_id(fallback)
    others = [id_ for data in (b"b", b"c", b"d") if (id_ := BRIDGE.draft.id_of(data)) is not None]
    ids = [letter, fallback, *others]
    row[ids] = torch.tensor([0.3, 0.2, 0.25, 0.15, 0.1]).log()
    session = sampling(REJECTION, q=4)  # the least likely one is cut off
    count = 20_000
    specs = [samples_of(session) for _ in range(count)]
    found = sample_rows(row.expand(count, -1), [BRIDGE.shared] * count, specs, [0] * count)
    assert found[0] is not None and found[0].distribution is not None
    reported = in_target_ids(BRIDGE, found[0].distribution)
    assert len(found[0].distribution.ids) == 4 and len(reported.ids) == 3
    mapped_ids = [BRIDGE.mapped_id(each.token) for each in found if each is not None]
    counts = [mapped_ids.count(id_) for id_ in reported.ids]
    assert sum(counts) == count
    for got, p in zip(counts, reported.probabilities, strict=True):
        assert abs(got - count * p) < 4.5 * (count * p * (1 - p)) ** 0.5
    assert dict(zip(reported.ids, reported.probabilities, strict=True))[mapped_ids[0]] > 0  # type: ignore[index]


def test_a_coupled_draft_is_the_sample_of_the_seed_at_its_place_in_the_targets_ids() -> None:
    session = sampling(COUPLED, seed=11)
    session.commit([7, 8, 9])
    specs, row = samples_of(session), logits(8)
    for step in (0, 2):
        (found,) = sample_rows(row, [BRIDGE.shared], [specs], [step])
        distribution = row.masked_fill(~BRIDGE.shared, -math.inf).softmax(-1)[0]
        seed, position = torch.tensor([seed_word(11)]), torch.tensor([2 + 3 + step])
        shared = BRIDGE.shared.nonzero().squeeze(1)
        noise = exponential(seed, position, BRIDGE.to_target[shared], Purpose.COUPLED)[0]
        best = shared[(noise / distribution[shared]).argmin()]
        assert found is not None and found.token == int(best)


def test_ids_that_are_not_mapped_have_noise_of_their_own() -> None:
    alone = (~BRIDGE.shared).nonzero().squeeze(1)
    assert len(alone) and bool((BRIDGE.noise_ids[alone] == alone + NO_TARGET_ID).all())
    assert bool((BRIDGE.noise_ids[BRIDGE.shared] < BRIDGE.target.width).all())


def test_behind_a_held_space_a_word_has_the_noise_of_the_word_without_it() -> None:
    words = BRIDGE.draft_spaced.nonzero().squeeze(1).tolist()
    rests = [BRIDGE.target.id_of(BRIDGE.draft.token_bytes(word)[1:]) for word in words]
    assert any(rest is not None for rest in rests)
    for word, rest in zip(words, rests, strict=True):
        expected = word + NO_TARGET_ID if rest is None else rest
        assert int(BRIDGE.noise_ids_after_space[word]) == expected
    held = sampling(COUPLED, seed=1).params(TEXT, after_space=True)
    assert held is not None
    assert held.first_noise_ids is BRIDGE.noise_ids_after_space
    assert held.noise_ids is BRIDGE.noise_ids


def test_a_session_that_may_choose_nothing_drafts_nothing() -> None:
    specs = samples_of(sampling(REJECTION, seed=1))
    nothing = torch.zeros_like(BRIDGE.shared)
    scores = torch.cat([logits(1), torch.full((1, WIDTH), math.nan)])
    found = sample_rows(scores, [nothing, BRIDGE.shared], [specs, specs], [0, 0])
    assert found == [None, None]


def test_without_a_q_to_send_the_likeliest_is_drafted() -> None:
    """No-q accepts x with probability p(x): the likeliest is the best that can be proposed."""
    assert sampling(TARGET_ONLY).params(INTERSECTION) is None
    assert sampling(TARGET_ONLY).params(TEXT) is None
    assert sampling(REJECTION).params(TEXT) is None
    assert sampling(COUPLED, seed=1).params(TEXT) is not None


def test_no_draft_uses_the_numbers_of_another_and_coupled_ones_always_do() -> None:
    session = sampling(REJECTION, seed=1)
    assert samples_of(session).seed != samples_of(session).seed
    assert samples_of(sampling(REJECTION)).seed != samples_of(sampling(REJECTION)).seed
    coupled = sampling(COUPLED, seed=1)
    assert samples_of(coupled).seed == samples_of(coupled).seed == 1


async def test_sessions_that_sample_and_that_do_not_share_a_step() -> None:
    driven = DrivenEngine(BRIDGE, lambda context: {A[1]: 2.0, B[1]: 1.5})
    session = sampling(REJECTION, seed=5, q=3)
    specs = samples_of(session)
    banned = processors(logit_bias=((A[0], -9.0),))
    places = [driven.open() for _ in range(3)]
    tasks = [
        await driven.ask(places[0], (A[1], C[1]), 3, allowed=BRIDGE.shared, sampling=specs),
        await driven.ask(places[1], (A[1], C[1]), 2),
        await driven.ask(places[2], (A[1], C[1]), 1, processors=banned),
    ]
    assert driven.run() == 3
    sampled, greedy, processed = [await task for task in tasks]
    assert greedy.ids == [A[1], A[1]] and greedy.distributions == processed.distributions == []
    assert processed.ids == [B[1]]
    assert len(sampled.ids) == len(sampled.distributions) == 3
    for token, distribution in zip(sampled.ids, sampled.distributions, strict=True):
        assert token in distribution.ids and len(distribution.ids) == 3
    again = await driven.ask(places[1], (A[1], C[1]), 3, allowed=BRIDGE.shared, sampling=specs)
    driven.run()
    assert ((await again).ids, (await again).distributions) == (
        sampled.ids,
        sampled.distributions,
    )  # sampled as alone


# What goes over the wire.


def test_bytes_per_drafted_position() -> None:
    width = 151_936
    ids = torch.randperm(width, generator=torch.Generator().manual_seed(1))[:64].tolist()
    distribution = SparseDistribution(tuple(ids), tuple(torch.rand(64).softmax(0).tolist()))
    tokens = (ids[0], ids[5], ids[9])
    with_q = proposal_to_pb(Proposal(900, 30_000, tokens, (distribution,) * 3)).ByteSize()
    without = proposal_to_pb(Proposal(900, 30_000, tokens)).ByteSize()
    assert with_q / 3 < 700 and without / 3 < 10
    one = proposal_to_pb(Proposal(900, 30_000, tokens, tuple(map(one_hot, tokens)))).ByteSize()
    assert one / 3 < 25


def test_a_distribution_in_target_ids_keeps_its_mass() -> None:
    distribution = SparseDistribution((A[1], B[1]), (0.25, 0.75))
    assert in_target_ids(BRIDGE, distribution) == SparseDistribution((A[0], B[0]), (0.25, 0.75))
