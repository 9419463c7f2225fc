"""Acceptance on a GPU: drafts sent in one copy, kernels, results fetched in one copy.

Knows how sessions become the kernels' arguments, and which workspace serves which session: a
session's numbers may not depend on who sits beside it, so those with logits processors, which the
kernels search otherwise (verifier/kernels/mask_logits.py), never share a launch with others. Does
not know how the kernels work. Nothing waits for the device before the last copy: launches queue
behind the pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from common.device.runtime import Runtime
from common.device.staging import HostBuffer, Staging
from common.kernels.row_top import NO_TOKEN
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.types import TokenLogprobs
from verifier.acceptance.batch import LogitsProcessors, SamplingBatch
from verifier.acceptance.draft_distributions import pack_draft_distributions
from verifier.acceptance.logprobs import fetch_logprobs
from verifier.acceptance.sampler import VerifyOutput, sampling_batch
from verifier.acceptance.token_counts import processor_rows
from verifier.batcher import Batch
from verifier.kernels.accept import Workspace, accept
from verifier.session import Session

log = logging.getLogger(__name__)

PAIRS_PER_ROW = 1024  # processed ids that there is space for at first


@dataclass(frozen=True)
class _SamplerInput:
    """One launch's sessions, as host tensors; None where no session needs it."""

    work: Workspace
    draft_tokens: Tensor
    offsets: Tensor
    sampling: SamplingBatch | None
    q: SparseDistributions | None
    processors: LogitsProcessors | None

    @property
    def parts(self) -> list[Any]:
        return [self.draft_tokens, self.offsets, self.sampling, self.q, self.processors]


class DeviceAcceptanceSampler:
    """One engine's (see verifier/acceptance/sampler.py); all memory is made here."""

    def __init__(
        self,
        device: torch.device,
        runtime: Runtime,
        dtype: torch.dtype,  # of logits
        vocab: int,
        most_rows: int,
        most_sessions: int,
        real_ids: Tensor | None,  # bool [vocab], on the host
    ) -> None:
        self._device, self._dtype, self._vocab = device, dtype, vocab
        self._most = (most_rows, most_sessions)
        self._real: Tensor | None = None
        if real_ids is not None and not bool(real_ids.all()):
            self._real = real_ids.to(device)
        self._real_count = vocab if real_ids is None else int(real_ids.sum())
        self._greedy = self._workspace(greedy=True)
        self._plain = self._workspace()
        self._adjusting = self._workspace(pairs=PAIRS_PER_ROW * most_rows)
        self._results = torch.zeros((most_sessions, 2), dtype=torch.int64, device=device)
        self._staging = Staging(device, runtime)
        self._host_buffer = HostBuffer(2 * most_sessions, torch.int64, runtime)
        self._begun = runtime.event()
        self.enter, self.check = runtime.enter, runtime.check
        self.lag_s = 0.0

    def accept(self, batch: Batch, logits: Tensor) -> list[VerifyOutput | None]:
        """One output per verified session, in their order; logits: [logit rows, vocab].

        None: logits that the session's result depends on aren't finite.
        """
        asked_at = time.monotonic()
        self._begun.record()
        sessions = batch.verified
        if not sessions:
            self._begun.wait()
            self.lag_s = time.monotonic() - asked_at
            return []
        self._launch([self._ask(part) for part in _parts(sessions)], logits)
        results = self._host_buffer.fetch(self._results[: len(sessions)]).tolist()
        accept_s = self._host_buffer.landed.seconds_since(self._begun)
        self.lag_s = max(0.0, time.monotonic() - asked_at - accept_s)
        logprobs_of = self._logprobs(sessions, results, logits)
        return [
            None if token == NO_TOKEN else VerifyOutput(length, token, logprobs)
            for (length, token), logprobs in zip(results, logprobs_of, strict=True)
        ]

    def warm_up(self) -> None:
        """Run every kernel that a step may run, so that none is compiled while sessions wait."""
        began = time.monotonic()
        logits = torch.zeros((1, self._vocab), dtype=self._dtype, device=self._device)
        one = torch.tensor([0]), torch.tensor([0, 1])
        off = torch.tensor([1.0])
        sampling = SamplingBatch(
            torch.tensor([AcceptanceRule.REJECTION], dtype=torch.int8), off,
            torch.tensor([3]).int(),
            off, off * 0, torch.tensor([0]), torch.tensor([0]),
        )  # fmt: skip
        q = SparseDistributions(torch.zeros(1, 1).int(), torch.ones(1, 1))
        nothing = torch.zeros(0)
        pairs = LogitsProcessors(
            torch.tensor([0, 0]), nothing.int(), nothing, nothing.bool(), nothing.int(),
            nothing.bool(), off, off * 0, off * 0,
        )  # fmt: skip
        asked = [_SamplerInput(self._greedy, *one, None, None, None)]
        for given in (None, q):
            asked.append(_SamplerInput(self._plain, *one, sampling, given, None))
            asked.append(_SamplerInput(self._adjusting, *one, sampling, given, pairs))
        for each in asked:
            self._launch([each], logits)
        self._host_buffer.fetch(self._results[:1])
        log.info("acceptance kernels are ready after %.1f s", time.monotonic() - began)

    def _workspace(self, pairs: int = 0, greedy: bool = False) -> Workspace:
        rows, sessions = self._most
        return Workspace.empty(
            rows, sessions, self._vocab, self._dtype, self._device, self._real, pairs, greedy
        )

    def _ask(self, sessions: Sequence[Session]) -> _SamplerInput:
        part = Batch([], [], list(sessions))
        rows = part.draft_tokens(), part.offsets()
        if all(session.takes_argmax for session in sessions) and not _adjusts(sessions[0]):
            return _SamplerInput(self._greedy, *rows, None, None, None)
        sampling = sampling_batch(sessions, self._vocab)
        q = pack_draft_distributions([(session.q, len(session.draft)) for session in sessions])
        if not _adjusts(sessions[0]):
            return _SamplerInput(self._plain, *rows, sampling, q, None)
        all_token_counts = [(session.token_counts, session.draft) for session in sessions]
        processors = processor_rows(all_token_counts, always=True)
        assert processors is not None
        if len(processors.ids) > len(self._adjusting.taken):
            self._adjusting = self._workspace(pairs=2 * len(processors.ids))
        return _SamplerInput(self._adjusting, *rows, sampling, q, processors)

    def _launch(self, asked: Sequence[_SamplerInput], logits: Tensor) -> None:
        """Verify all, one after another, into `_results`."""
        sent = iter(self._staging.send([part for each in asked for part in each.parts]))
        row = session = 0
        for each in asked:
            rows, sessions = len(each.draft_tokens), len(each.offsets) - 1
            drafts, offsets, sampling, q, processors = (next(sent) for _ in each.parts)
            into = replace(each.work, acceptance=self._results[session : session + sessions])
            accept(
                logits[row : row + rows], drafts, offsets, sampling, q, processors, into.allowed,
                work=into,
            )  # fmt: skip
            row, session = row + rows, session + sessions

    def _logprobs(
        self, sessions: Sequence[Session], results: Sequence[Sequence[int]], logits: Tensor
    ) -> list[tuple[TokenLogprobs, ...]]:
        all_logprobs: list[tuple[TokenLogprobs, ...]] = []
        row = 0
        for session, (accepted, token) in zip(sessions, results, strict=True):
            top = session.spec.sampling.logprobs
            run = [*session.draft[:accepted], token]
            made: tuple[TokenLogprobs, ...] = ()
            if top is not None and token != NO_TOKEN:
                rows = logits[row : row + len(run)]
                made = fetch_logprobs(rows, run, min(top, self._real_count), self._real)
            all_logprobs.append(made)
            row += session.sequence.wanted
        return all_logprobs


def _adjusts(session: Session) -> bool:
    """By what it asks for, in all of its rounds alike."""
    return session.spec.sampling.processes_logits


def _parts(sessions: Sequence[Session]) -> list[Sequence[Session]]:
    """Sessions with bare logits, then those with processed ones: the batcher's order."""
    bare = sum(not _adjusts(session) for session in sessions)
    assert not any(map(_adjusts, sessions[:bare])), "sessions with logits processors come last"
    return [part for part in (sessions[:bare], sessions[bare:]) if part]
