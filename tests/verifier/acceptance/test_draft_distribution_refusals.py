"""Parameters and rows of q that can't be: refused by name, and nobody else is harmed."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.pb import sampling_pb2
from common.pb import verifier_pb2 as pb
from common.types import Proposal, SparseDistribution
from common.wire.verify import verify_once_to_pb
from tests.statistics.sampled_sessions import COUPLED, GREEDY, REJECTION, TARGET_ONLY, run, sampled
from tests.support.verifier_sessions import VOCAB, beside_another, serving
from tests.support.verify_streams import Refusal, Stream

NAN, INF = math.nan, math.inf


async def test_a_rule_that_does_not_fit_is_refused_over_the_wire() -> None:
    async with serving() as verifier:
        for rule, params in (
            (GREEDY, {"temperature": 1.0}),
            (REJECTION, {"temperature": 0.0}),
            (COUPLED, {"seed": None}),
        ):
            spec = sampled(verifier, rule, **params)
            for request in (
                lambda spec=spec: Stream(verifier).refused(spec),
                lambda spec=spec: refused_once(verifier, verify_once_to_pb(spec, ())),
            ):
                refusal = await beside_another(verifier, request)
                assert refusal.code is StatusCode.INVALID_ARGUMENT
                assert refusal.message.startswith(f"open.acceptance_rule is {rule.label}")
                assert refusal.reason == "UNFIT_RULE"


async def refused_once(verifier: Any, request: pb.VerifyOnceRequest) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await verifier.stub.VerifyOnce(request)
    return Refusal(caught.value)


GOOD = SparseDistribution((7, 8, 9), (0.5, 0.25, 0.25))
DRAFT = (7, 8)
BAD_ROWS = [
    ("no row for a token", (GOOD,), "q is 1 rows long; it must be 2, one per draft token"),
    ("a row too many", (GOOD,) * 3, "q is 3 rows long"),
    ("no rows at all", (), "q is 0 rows long"),
    (
        "an id out of range",
        (GOOD, SparseDistribution((8, VOCAB), (0.5, 0.5))),
        f"q[1].token_ids[1] is {VOCAB}; it must be in [0, {VOCAB})",
    ),
    (
        "an id twice",
        (SparseDistribution((7, 9, 9), (0.5, 0.25, 0.25)), GOOD),
        "q[0].token_ids is 2 times 9; it must be distinct",
    ),
    (
        "the draft token twice",
        (SparseDistribution((7, 7), (0.5, 0.5)), GOOD),
        "q[0].token_ids is 2 times 7",
    ),
    (
        "a negative probability",
        (SparseDistribution((7, 9, 10), (0.75, 0.5, -0.25)), GOOD),
        "q[0].probabilities[2] is -0.25; it must be finite and not negative",
    ),
    (
        "NaN",
        (GOOD, SparseDistribution((8, 9), (1.0, NAN))),
        "q[1].probabilities[1] is nan",
    ),
    (
        "infinity",
        (GOOD, SparseDistribution((8, 9), (1.0, INF))),
        "q[1].probabilities[1] is inf",
    ),
    (
        "a sum below one",
        (SparseDistribution((7, 9), (0.5, 0.498)), GOOD),
        "q[0].probabilities is 0.998 in sum; it must be within 0.001 of 1",
    ),
    (
        "a sum above one",
        (SparseDistribution((7, 9), (0.5, 0.502)), GOOD),
        "q[0].probabilities is 1.002",
    ),
    ("nothing in it", (GOOD, SparseDistribution((), ())), "q[1].probabilities is 0 in sum"),
    (
        "not the draft token",
        (GOOD, SparseDistribution((7, 9), (0.5, 0.5))),
        "q[1].probabilities is 0 for the draft token 8; it must be above 0",
    ),
    (
        "the draft token with 0",
        (SparseDistribution((7, 9), (0.0, 1.0)), GOOD),
        "q[0].probabilities is 0 for the draft token 7",
    ),
    (
        "more entries than the limit",
        (SparseDistribution(tuple(range(5)), (0.2,) * 5), GOOD),
        "q[0].token_ids is 5 long; it must be at most 4",
    ),
]


@pytest.mark.parametrize(("rows", "words"), [case[1:] for case in BAD_ROWS], ids=lambda _: "")
async def test_rows_that_are_no_distribution_of_their_tokens_are_refused(
    rows: tuple[SparseDistribution, ...], words: str
) -> None:
    async with serving(max_q_entries=4) as verifier:
        spec = sampled(verifier, REJECTION)

        async def proposed() -> Refusal:
            stream = Stream(verifier)
            await stream.send(spec)
            return await stream.refused(Proposal(1, 5, DRAFT, rows))

        async def once() -> Refusal:
            return await refused_once(verifier, verify_once_to_pb(spec, DRAFT, rows))

        for act, prefix in ((proposed, "proposal."), (once, "")):
            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert refusal.message.startswith(prefix + words)
            assert refusal.reason == "INVALID_DISTRIBUTION"
            assert refusal.field.startswith(f"{prefix}q")


async def test_a_row_with_fewer_probabilities_than_ids_is_refused() -> None:
    async with serving() as verifier:
        distribution = sampling_pb2.SparseDistribution(token_ids=[7, 8], probabilities=[1.0])
        bad = pb.Proposal(round=1, base_length=5, token_ids=[7], q=[distribution])

        async def act() -> Refusal:
            stream = Stream(verifier)
            await stream.send(sampled(verifier, REJECTION))
            return await stream.refused(pb.VerifyRequest(proposal=bad))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert refusal.message.startswith("proposal.q[0].probabilities is 1 values long")


@pytest.mark.parametrize("rule", [GREEDY, TARGET_ONLY, COUPLED])
async def test_rows_under_a_rule_that_takes_none_are_refused(rule) -> None:
    async with serving() as verifier:

        async def act() -> Refusal:
            stream = Stream(verifier)
            await stream.send(sampled(verifier, rule))
            return await stream.refused(Proposal(1, 5, (7,), (GOOD,)))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert refusal.message == (
            f"proposal.q is 1 rows long; it must be empty under the rule {rule.label}"
        )


async def test_rows_at_the_edges_are_taken() -> None:
    """The limit's own number of entries, zeros beside them, a sum within its tolerance."""
    async with serving(max_q_entries=4) as verifier:
        stream = Stream(verifier)
        await stream.send(sampled(verifier, REJECTION, max_new_tokens=50))
        rows = (
            SparseDistribution((7, 9, 10, VOCAB - 1), (0.5, 0.5, 0.0, 0.0)),
            SparseDistribution((8,), (0.9995,)),
            SparseDistribution((9, 8), (1e-30, 1.0)),
        )
        verdict = await stream.send(Proposal(1, 5, (7, 8, 9), rows))
        assert 0 <= verdict.accepted_length <= 3
        assert (await stream.send(Proposal(2, verdict.committed_length, ()))).round == 2
        stream.cancel()
        assert (await run(verifier, sampled(verifier, REJECTION))).tokens
