"""Where a session ends: at the first reason inside a run, and never beyond a limit."""

from __future__ import annotations

import pytest

from common.errors import OutOfOrder, WrongRound
from common.kv.pages import PagePool
from common.types import FinishReason, OpenSession, Proposal, Verdict
from verifier.session import Session, cut_run

STOP, EOS, OTHER_EOS = 7, 8, 9
REASON_STOP, LENGTH, CONTEXT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT


class Posted:
    """A mailbox whose results lie open."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def post(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)


class Driven:
    """A session whose model's tokens are set by the test."""

    def __init__(
        self,
        prompt: int = 3,
        max_new_tokens: int = 100,
        context: int = 1000,
        ignore_eos: bool = False,
    ) -> None:
        spec = OpenSession(
            tuple(range(100, 100 + prompt)),
            max_new_tokens,
            "",
            frozenset({STOP}),
            ignore_eos=ignore_eos,
        )
        self.mailbox = Posted()
        eos = frozenset({EOS, OTHER_EOS})
        self.session = Session(spec, PagePool(300, 4), eos, context, self.mailbox)  # type: ignore[arg-type]

    def check(self, draft: list[int], accepted: int, next_token: int) -> Verdict:
        """One round in which `accepted` draft tokens are accepted, if as many run."""
        session = self.session
        session.ask(draft, 0.0)
        table = session.sequence.table
        table.reserve(len(session.sequence.tokens))
        table.extend(session.sequence.pending)
        session.ran(0.0, 0.0)
        ran = session.draft
        if accepted > len(ran):
            accepted, next_token = len(ran), draft[len(ran)]
        session.commit(accepted, next_token, 0.0, (1, 1))
        return self.mailbox.verdicts[-1]

    @property
    def output(self) -> list[int]:
        return self.session.sequence.tokens[len(self.session.spec.prompt) :]


def test_a_stop_inside_an_accepted_run_cuts_it_there() -> None:
    driven = Driven(max_new_tokens=5)
    verdict = driven.check([10, 11, STOP, 20, 21], 5, 22)
    assert driven.output == [10, 11, STOP]
    assert verdict.finish_reason is REASON_STOP
    assert (verdict.accepted_length, verdict.next_token) == (3, None)
    assert verdict.committed_length == 3 + 3


@pytest.mark.parametrize("run", [[10, 11, STOP, 20, 21, 22], [10, 11, STOP], [10, 11, STOP, 20]])
def test_the_run_is_cut_at_the_first_reason(run: list[int]) -> None:
    assert cut_run(run, 0, 3, frozenset({STOP}), 5, 1000) == (3, REASON_STOP)


@pytest.mark.parametrize(
    ("limit", "count", "reason"),
    [(2, 2, LENGTH), (3, 3, REASON_STOP), (4, 3, REASON_STOP), (1, 1, LENGTH)],
)
def test_a_stop_exactly_at_and_just_after_the_limit(
    limit: int, count: int, reason: FinishReason
) -> None:
    run = [10, 11, STOP, 20]
    assert cut_run(run, 0, 3, frozenset({STOP}), limit, 1000) == (count, reason)
    driven = Driven(max_new_tokens=limit)
    assert driven.check(run, 4, 30).finish_reason is reason
    assert driven.output == run[:count]


@pytest.mark.parametrize("k", [1, 3, 8])
def test_limits_of_one_k_and_k_plus_one(k: int) -> None:
    draft = list(range(20, 20 + k))
    for limit in (1, k, k + 1, k + 2):
        driven = Driven(max_new_tokens=limit)
        verdict = driven.check(draft, k, 50)
        assert driven.output == [*draft, 50][:limit]
        assert verdict.finish_reason is (LENGTH if limit <= k + 1 else None)
        assert verdict.committed_length == 3 + min(limit, k + 1)
        if limit <= k:  # what can't be accepted isn't even run
            assert driven.session.sequence.table.length < 3 + limit


@pytest.mark.parametrize("end", [STOP, EOS, OTHER_EOS])
@pytest.mark.parametrize("as_draft", [True, False])
def test_each_end_id_ends_the_session(end: int, as_draft: bool) -> None:
    driven = Driven()
    verdict = driven.check([10, end, 12], 3, 13) if as_draft else driven.check([10, 12], 1, end)
    assert verdict.finish_reason is REASON_STOP
    assert driven.output == [10, end]


def test_ignored_eos_leaves_the_requests_own_stops() -> None:
    driven = Driven(ignore_eos=True)
    assert driven.check([EOS, OTHER_EOS], 2, 12).finish_reason is None
    assert driven.check([EOS, STOP], 2, 12).finish_reason is REASON_STOP


def test_a_drafted_eos_that_the_target_rejects_does_not_end_the_session() -> None:
    driven = Driven()
    verdict = driven.check([10, EOS, 12], 1, 20)
    assert verdict.finish_reason is None
    assert driven.output == [10, 20]
    assert driven.check([EOS], 0, 21).finish_reason is None
    assert driven.output == [10, 20, 21]


@pytest.mark.parametrize("k", [0, 1, 3, 5, 8, 12])
def test_the_last_ten_positions_before_the_context_limit(k: int) -> None:
    limit = 40
    for left in range(1, 11):
        driven = Driven(prompt=limit - left, context=limit)
        verdict, deltas = driven.check([], 0, 20), [20]
        while verdict.finish_reason is None:
            stage = limit - verdict.committed_length
            draft = [30 + i for i in range(k)]
            verdict = driven.check(draft, k, 60)
            assert driven.session.sequence.table.length < limit
            deltas += [*draft, 60][:stage]
        assert verdict.finish_reason is CONTEXT
        assert verdict.committed_length == limit
        assert driven.output == deltas and len(deltas) == left


def test_rolling_back_leaves_one_token_to_run() -> None:
    driven = Driven()
    driven.check([10, 11, 12], 1, 20)
    table = driven.session.sequence.table
    assert table.length == driven.session.committed_length - 1
    driven.session.sequence.table.preempt()
    assert driven.check([30], 1, 31).committed_length == 3 + 2 + 2


def test_only_the_round_that_comes_next_is_taken() -> None:
    driven = Driven()
    session = driven.session
    driven.check([], 0, 20)
    session.expect(Proposal(1, 4, ()))
    for proposal, field in ((Proposal(0, 4, ()), "round"), (Proposal(2, 4, ()), "round")):
        with pytest.raises(WrongRound, match=f"{field} is {proposal.round}; this session is at 1"):
            session.expect(proposal)
    with pytest.raises(WrongRound, match="base_length is 3; this session is at 4"):
        session.expect(Proposal(1, 3, ()))
    session.ask([], 0.0)
    with pytest.raises(OutOfOrder, match="round 1 is being checked"):
        session.expect(Proposal(1, 4, ()))
