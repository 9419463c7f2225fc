"""What the two models say where live rounds meet them: p and q of every draft position reached.

Sessions are the real ones of both services, in this process and one at a time, under the rejection
rule; the models are wrapped, so that the logits of each pass can be read afterwards. Of a row only
what acceptance depends on is kept: p at the ids that may be drafted, and the rest as one id more.
Knows rounds and rows. Does not know what acceptance should be (bench/acceptance/optimum.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from bench.acceptance.replay import info_for_replay, no_verifier
from bench.support.progress import ReportProgress
from bench.support.target_prompts import TargetPrompt
from common.kv.pages import PagePool
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions, filters, probabilities
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, ModelInfo, OpenSession, Proposal, Verdict
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import contexts_by_mode
from drafter.bridge.proposer import AutoChooser
from drafter.engine.distribution import draft_distribution
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import COUPLED_SLOTS
from drafter.session import Pair, SpeculativeSession
from drafter.speculation import speculate
from drafter.startup import ROW_COST, STEP_COST
from drafter.verifier_client.client import VerifierClient
from drafter.verifier_client.lost import Answer
from drafter.verifier_client.selection import VerifierHistory
from verifier.engine import Limits, VerifierEngine

PAGE_SIZE = 16
BATCH_TOKENS = 256
Q_ENTRIES = 64  # of a distribution that goes along, as the drafter's default has it


@dataclass(frozen=True)
class Meeting:
    """Two distributions over a few ids. The last one represents all others: nothing drafts it."""

    p: Tensor  # float32 [ids + 1]
    q: Tensor  # float32 [ids + 1], 0 at the end


@dataclass(frozen=True)
class Row:
    """One draft position that a live round reached."""

    position: int  # drafts before it in its round, all of which were accepted
    sent: Meeting  # with the distribution that went along
    coupled: Meeting  # with the distribution that a coupled session samples from
    likeliest: Meeting  # with the certain distribution of what a session without q proposes
    whole: float  # sum of min(p, q), q the draft's masked distribution before the cut
    accepted: bool  # whether the live draft token was


class Noting:
    """A model, and the logits of its passes."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self.passes: list[Tensor] = []  # [logit rows, vocab] each

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, chunks: Sequence[Any]) -> Tensor:
        logits = self._model.forward(chunks)
        if len(logits):
            self.passes.append(logits)
        return logits


class Rounds:
    """A pair whose every round leaves its rows. Start its engines with `running`."""

    def __init__(
        self,
        target: PagedModel,
        target_files: TokenizerFiles,
        draft: PagedModel,
        draft_files: TokenizerFiles,
        context: int,  # tokens of a prompt and its output, at most
        params: SamplingParams,  # at a temperature, without logits processors
    ) -> None:
        assert not params.greedy and not params.processes_logits
        self._params = params
        theirs = Vocabulary(target_files, target.vocab_size, target.eos_ids)
        ours = Vocabulary(draft_files, draft.vocab_size, draft.eos_ids)
        self.bridge = Bridge(theirs, ours)
        self._real = torch.from_numpy(theirs.real)  # bool [target vocab]
        self._target, self._draft = Noting(target), Noting(draft)
        self.rows: list[Row] = []
        limits = Limits(1, 16, context, BATCH_TOKENS, Q_ENTRIES)
        self._checks = VerifierEngine(
            cast(PagedModel, self._target),
            _pool(target, context),
            limits,
            theirs.eos_ids,
            self._real,
        )
        drafts = DraftEngine(
            cast(PagedModel, self._draft),
            _pool(draft, 2 * context),
            self.bridge,
            BATCH_TOKENS,
            2 * context,
        )
        info: ModelInfo = info_for_replay(target_files.sha256, theirs.width, theirs.eos_ids)
        chooser = AutoChooser(STEP_COST, ROW_COST)
        pair = Pair(self.bridge, drafts, no_verifier(), info, chooser, False, Q_ENTRIES)
        self.history = VerifierHistory()
        self._pair = Pair(**{**vars(pair), "verifier": cast(VerifierClient, self)})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both engines' threads."""
        self._checks.start()
        self._pair.engine.start()
        try:
            yield
        finally:
            self._pair.engine.stop()
            self._checks.stop()

    async def record(
        self,
        asked: Sequence[TargetPrompt],
        max_new_tokens: int,
        steps: int,
        report_progress: ReportProgress,
    ) -> None:
        """One session for each question, with its number as the seed, so that it repeats itself."""
        for number, target_prompt in enumerate(asked):
            report_progress(f"recording {target_prompt.name}", number, len(asked))
            sampling = SamplingParams(**{**vars(self._params), "seed": number})
            spec = OpenSession(
                target_prompt.ids,
                max_new_tokens,
                self._pair.info.tokenizer_sha256,
                rule=AcceptanceRule.REJECTION,
                sampling=sampling,
            )
            mode = BridgeMode.INTERSECTION
            contexts = contexts_by_mode(self.bridge, target_prompt.ids, "auto", None, mode)
            async for _ in speculate(SpeculativeSession(self._pair, spec, contexts, steps, mode)):
                pass

    def session(self, spec: OpenSession) -> _Session:
        """As drafter/verifier_client/client.py's, which this and `met` replace."""
        return _Session(self._checks, spec, self._note)

    def _note(self, proposal: Proposal, verdict: Verdict) -> None:
        """The rows of a round that was just verified: those whose earlier drafts were accepted."""
        reached = min(verdict.accepted_length + 1, len(proposal.token_ids))
        drafted = self._draft.passes[-len(proposal.token_ids) :] if reached else []
        for place in range(reached):
            logits = self._target.passes[-1][place : place + 1]
            logits = logits.masked_fill(~self._real, float("-inf"))
            p = probabilities(logits, *filters([self._params], logits.shape[-1]))[0]
            accepted = place < verdict.accepted_length
            row = self._row(place, p, drafted[place][-1:], accepted)
            sent = dict(zip(proposal.q[place].ids, proposal.q[place].probabilities, strict=True))
            reported = sorted(value for value in sent.values() if value > 0)
            assert torch.allclose(row.sent.q[row.sent.q > 0].sort().values, torch.tensor(reported))
            self.rows.append(row)
        self._target.passes.clear()
        self._draft.passes.clear()

    def _row(self, position: int, p: Tensor, logits: Tensor, accepted: bool) -> Row:
        def distribution(slots: int) -> SparseDistributions:
            given = filters([self._params], logits.shape[-1])
            return draft_distribution(logits, self.bridge.shared, *given, slots=slots)

        sent, coupled, whole = (
            distribution(Q_ENTRIES),
            distribution(COUPLED_SLOTS),
            distribution(logits.shape[-1]),
        )
        # Of draft ids that share a mapped token the likeliest counts where they share its noise.
        first = SparseDistributions(sent.ids[:, :1], torch.ones(1, 1))
        q = torch.zeros_like(p).index_add_(0, self.bridge.to_target[whole.ids[0]], whole.probs[0])
        return Row(
            position,
            self._meeting(p, sent, "sum"),
            self._meeting(p, coupled, "amax"),
            self._meeting(p, first, "sum"),
            float(torch.minimum(p, q).sum(dtype=torch.float64)),
            accepted,
        )

    def _meeting(self, p: Tensor, distribution: SparseDistributions, shared: str) -> Meeting:
        """p: float32 [target vocab]. shared: what becomes of draft ids with one mapped token."""
        used = distribution.probs[0] > 0
        ids, places = self.bridge.to_target[distribution.ids[0, used]].unique(return_inverse=True)
        q = torch.zeros(len(ids)).scatter_reduce(0, places, distribution.probs[0, used], shared)
        rest = (p.sum(dtype=torch.float64) - p[ids].sum(dtype=torch.float64)).clamp(min=0)
        return Meeting(
            torch.cat([p[ids], rest.float()[None]]), torch.cat([q / q.sum(), torch.zeros(1)])
        )


class _Session:
    """In place of VerifierSession: the engine itself, without a network."""

    wire_bytes = 0
    identity = limits = None
    resumed_on = frozenset[str]()

    def __init__(self, engine: VerifierEngine, spec: OpenSession, note: Any) -> None:
        self._engine, self._spec, self._note = engine, spec, note

    async def open(self) -> Answer:
        self._session = self._engine.open(self._spec)
        return Answer(await self._session.mailbox.take(), 0.0)

    async def verify(self, proposal: Proposal) -> Answer:
        self._engine.propose(self._session, proposal)
        verdict = await self._session.mailbox.take()
        self._note(proposal, verdict)
        return Answer(verdict, 0.0)

    def close(self) -> None:
        self._engine.close(self._session)


def _pool(model: PagedModel, context: int) -> PagePool:
    pages = -(-context // PAGE_SIZE) + 1
    model.allocate(pages, PAGE_SIZE)
    return PagePool(pages, PAGE_SIZE)
