"""What the drafter sends, verified by the verifier's own function, follows p exactly.

Drafts, bridge, lookup and the choice of mode are the real ones; the models' opinions are written
here. The joint distribution of a session's first tokens is tested, over thousands of sessions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch

from common.kv.pages import PagePool
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.sampling.parameters import SamplingParams
from common.sampling.rng import seed_word
from common.types import BridgeMode, OpenSession
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import contexts_by_mode
from drafter.bridge.prompt_lookup import PromptLookup
from drafter.bridge.proposer import AutoChooser
from drafter.drafting import NOTHING, Drafted, Drafting
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import DraftSampling
from drafter.statistics import StreamStatistics
from tests.statistics.joint_distributions import tail_probability
from tests.support.fake_drafts import PAGE_SIZE, ScriptedModel
from tests.support.fake_services import running
from tests.support.fake_tokenizers import family
from verifier.acceptance.batch import SamplingBatch
from verifier.acceptance.rules import accept

pytestmark = pytest.mark.long

BRIDGE = Bridge(family("byte-level"), family("sentencepiece"))  # target, draft
WIDTH = BRIDGE.target.width
AT_ONCE = 50


def target_id(text: str) -> int:
    found = BRIDGE.target.id_of(text.encode())
    assert found is not None
    return found


A, B, C = map(target_id, "abc")
ALONE = next(  # a token that the draft model can't speak
    int(id_)
    for id_ in BRIDGE.target.real.nonzero()[0]
    if BRIDGE.to_draft(int(id_)) is None and BRIDGE.target.token_bytes(int(id_)).isascii()
)
WORDS = (A, B, C, ALONE)
# p(next | last): of the target, in the order of WORDS. What follows `a` in the prompt is likely.
P = {A: (0.1, 0.5, 0.2, 0.2), B: (0.4, 0.1, 0.3, 0.2), C: (0.25, 0.25, 0.25, 0.25)}
Q = {A: (0.3, 0.3, 0.4), B: (0.1, 0.7, 0.2), C: (0.8, 0.1, 0.1)}
PROMPT = (A, B, A, B, A, B, C, A, B, A)


def p_row(last: int) -> torch.Tensor:
    row = torch.full((WIDTH,), -60.0)
    row[list(WORDS)] = torch.tensor(P.get(last, P[C])).log()
    return row


def draft_opinion(context: tuple[int, ...]) -> dict[int, float]:
    last = BRIDGE.mapped_id(context[-1])
    chances = Q.get(last if last is not None else C, Q[C])
    ids = [BRIDGE.to_draft(token) for token in (A, B, C)]
    return {
        id_: 60 + float(torch.tensor(q).log())
        for id_, q in zip(ids, chances, strict=True)
        if id_ is not None
    }


@dataclass(frozen=True)
class Way:
    rule: AcceptanceRule
    mode: BridgeMode
    steps: int


async def session(
    way: Way, number: int, length: int, engine: DraftEngine, chooser: AutoChooser, lookup: bool
) -> list[int]:
    """`length` tokens of one session, by rounds of draft and acceptance."""
    seed = number if way.rule is AcceptanceRule.COUPLED else None
    spec = OpenSession(
        PROMPT, length, "", rule=way.rule, sampling=SamplingParams(temperature=1.0, seed=seed)
    )
    drafting = Drafting(
        BRIDGE,
        engine,
        chooser,
        contexts_by_mode(BRIDGE, PROMPT, "auto", None),
        way.mode,
        DraftSampling(BRIDGE, spec, frozenset(), 64),
        PromptLookup(PROMPT) if lookup else None,
        StreamStatistics(),
    )
    output: list[int] = []
    while len(output) < length:
        drafted = await drafting.draft(way.steps)
        run = results_of(way.rule, number, [*PROMPT, *output], drafted)
        drafting.committed(run, drafted if drafted.mode else NOTHING)
        output += run
    drafting.close()
    return output[:length]


def results_of(
    rule: AcceptanceRule, number: int, committed: Sequence[int], drafted: Drafted
) -> list[int]:
    """The tokens that a verifier commits."""
    tokens, q = drafted.token_ids, drafted.q
    assert len(q) == (len(tokens) if rule is AcceptanceRule.REJECTION else 0)
    rows = torch.stack([p_row(last) for last in [committed[-1], *tokens]])
    slots = max((len(row.ids) for row in q), default=1)
    ids = torch.zeros(len(rows), slots, dtype=torch.int32)
    probs = torch.zeros(len(rows), slots)
    for place, row in enumerate(q):
        ids[place, : len(row.ids)] = torch.tensor(row.ids, dtype=torch.int32)
        probs[place, : len(row.ids)] = torch.tensor(row.probabilities)
    sampling = SamplingBatch(
        rule=torch.tensor([rule], dtype=torch.int8),
        temperature=torch.ones(1),
        top_k=torch.tensor([WIDTH], dtype=torch.int32),
        top_p=torch.ones(1),
        min_p=torch.zeros(1),
        seed=torch.tensor([seed_word(number)]),
        first_position=torch.tensor([len(committed)]),
    )
    made = accept(
        rows,
        torch.tensor([*tokens, 0]),
        torch.tensor([0, len(rows)]),
        sampling,
        SparseDistributions(ids, probs),
    )
    return [*tokens[: int(made.accepted_lengths[0])], int(made.next_tokens[0])]


def joint_distribution(length: int) -> torch.Tensor:
    """float64 [4 ** length]."""
    distribution = torch.ones(1, dtype=torch.float64)
    last = [A]
    for _ in range(length):
        rows = torch.stack([torch.tensor(P.get(word, P[C]), dtype=torch.float64) for word in last])
        distribution = (distribution[:, None] * rows).reshape(-1)
        last = [word for _ in last for word in WORDS]
    return distribution


@pytest.mark.parametrize(
    "way",
    [
        Way(AcceptanceRule.REJECTION, BridgeMode.INTERSECTION, 2),
        Way(AcceptanceRule.REJECTION, BridgeMode.AUTO, 3),
        Way(AcceptanceRule.TARGET_ONLY, BridgeMode.AUTO, 2),
        Way(AcceptanceRule.COUPLED, BridgeMode.TEXT, 2),
    ],
    ids=lambda way: f"{way.rule.label}, {way.mode.value}",
)
@pytest.mark.parametrize("run_ahead", [False, True], ids=["waiting", "ahead"])
async def test_sessions_follow_the_targets_distribution(way: Way, run_ahead: bool) -> None:
    """ahead: the third token is the first that may be; without lookup, whose tokens seldom are."""
    sessions, length = (1200, 3) if run_ahead else (600, 2)
    if run_ahead:
        way = replace(way, steps=1)
    pages = AT_ONCE * 8
    model = cast(PagedModel, ScriptedModel(BRIDGE.draft.width, pages, draft_opinion))
    engine = DraftEngine(model, PagePool(pages, PAGE_SIZE), BRIDGE, 256, 32, 1, None, run_ahead)
    chooser = AutoChooser(0.1, 0.03)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> tuple[int, ...]:
        async with places:
            return tuple(await session(way, number, length, engine, chooser, not run_ahead))

    with running(engine):
        outputs = await asyncio.gather(*(one(number) for number in range(sessions)))
    cell = {word: place for place, word in enumerate(WORDS)}
    counted = Counter(outputs)
    outputs = [
        sum(cell[token] * 4 ** (length - 1 - place) for place, token in enumerate(output))
        for output, count in counted.items()
        for _ in range(count)
    ]
    assert tail_probability(torch.tensor(outputs), joint_distribution(length)) > 1e-4
    confirmed = sum(engine._run_ahead_results[name,]._value.get() for name in ("hit", "part"))
    assert (confirmed > 0) == run_ahead
