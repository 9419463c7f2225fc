"""Whole sessions at a verifier with drafts of any worth, and distributions to go with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import FinishReason, OpenSession, Proposal, SparseDistribution, TokenLogprobs
from tests.support.fake_services import RunningVerifier
from tests.support.verifier_sessions import PROMPT, VOCAB
from tests.support.verify_streams import Stream

Drafts = Callable[[Sequence[int], int], list[int]]  # (output so far, space) -> draft tokens

# The target alone hardly repeats itself, nor any draft: a few ids that it must like.
FAVOURED = tuple((token_id, 9.0) for token_id in range(33, 38))

GREEDY, TARGET_ONLY = AcceptanceRule.GREEDY, AcceptanceRule.TARGET_ONLY
REJECTION, COUPLED = AcceptanceRule.REJECTION, AcceptanceRule.COUPLED


@dataclass
class Run:
    """What a session gave."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # by round, from 1
    finish_reason: FinishReason | None = None


def sampled(
    verifier: RunningVerifier,
    rule: AcceptanceRule = COUPLED,
    prompt: Sequence[int] = PROMPT,
    max_new_tokens: int = 16,
    ignore_eos: bool = True,
    stop_ids: frozenset[int] = frozenset(),
    resumed_output_tokens: int = 0,
    **params: Any,
) -> OpenSession:
    """A session with that rule; temperature 1 by default, coupled ones with a seed."""
    if rule is not GREEDY:
        params = {"temperature": 1.0, **params}
    if rule is COUPLED:
        params = {"seed": 7, **params}
    return verifier.open(
        prompt,
        max_new_tokens,
        rule=rule,
        sampling=SamplingParams(**params),
        ignore_eos=ignore_eos,
        stop_ids=stop_ids,
        resumed_output_tokens=resumed_output_tokens,
    )


def right(truth: Sequence[int], k: int) -> Drafts:
    return lambda output, stage: list(truth[len(output) :][: min(k, stage)])


def wrong(truth: Sequence[int], k: int) -> Drafts:
    """Every token is another one than the truth."""
    return lambda output, stage: [(t + 1) % VOCAB for t in right(truth, k)(output, stage)]


def half_right(truth: Sequence[int], k: int) -> Drafts:
    """Wrong from a place on that moves from round to round."""

    def draft(output: Sequence[int], stage: int) -> list[int]:
        tokens = right(truth, k)(output, stage)
        first = len(output) % (k + 1)
        return tokens[:first] + [(token + 1) % VOCAB for token in tokens[first:]]

    return draft


def any_tokens(k: int, seed: int = 0, among: Sequence[int] = range(VOCAB)) -> Drafts:
    """Random ones, the same at the same place."""

    def draft(output: Sequence[int], stage: int) -> list[int]:
        rng = random.Random(1000 * seed + len(output))
        return [rng.choice(among) for _ in range(min(k, stage))]

    return draft


def nothing(output: Sequence[int], stage: int) -> list[int]:
    """k = 0."""
    return []


def changing(truth: Sequence[int]) -> Drafts:
    """Another k each round, 0 among them."""
    return lambda output, stage: half_right(truth, 3 * len(output) % 9)(output, stage)


def distributions(draft: Sequence[int], seed: int) -> tuple[SparseDistribution, ...]:
    """A row of some size for each draft token; it need not have been sampled from to be checked."""
    rows = []
    for place, token in enumerate(draft):
        rng = random.Random(1_000_000 * seed + 1000 * token + place)
        ids = list({token, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40)))})
        rng.shuffle(ids)
        weights = [rng.random() + 0.01 for _ in ids]
        total = sum(weights)
        rows.append(SparseDistribution(tuple(ids), tuple(weight / total for weight in weights)))
    return tuple(rows)


async def run(
    verifier: RunningVerifier,
    spec: OpenSession,
    drafts: Drafts = nothing,
    opened: asyncio.Barrier | None = None,
) -> Run:
    """The session from its prefill to its end; with `opened`, all others open before it goes on."""
    stream, made = Stream(verifier), Run()
    verdict = await stream.send(spec)
    draft: list[int] = []
    if opened is not None:
        await opened.wait()
    while True:
        kept = draft[: verdict.accepted_length]
        tokens = kept if verdict.next_token is None else [*kept, verdict.next_token]
        made.tokens += tokens
        made.logprobs += verdict.logprobs
        asked = spec.sampling.logprobs is not None
        assert len(verdict.logprobs) == (len(tokens) if asked else 0)
        assert verdict.committed_length == len(spec.prompt) + len(made.tokens)
        if verdict.finish_reason is not None:
            assert await stream.ended()
            made.finish_reason = verdict.finish_reason
            return made
        draft = drafts(made.tokens, spec.max_new_tokens - len(made.tokens) - 1)
        q = distributions(draft, len(made.tokens)) if spec.rule is REJECTION else ()
        ahead = Proposal(verdict.round + 1, verdict.committed_length, tuple(draft), q)
        verdict = await stream.send(ahead)
        made.accepted.append(verdict.accepted_length)
