"""Acceptance without the target model: recorded outputs take the verifier's place.

Greedy output doesn't depend on drafts, so that the accepted length of any proposal follows from the
target's recorded output alone. The sessions, the bridge and the draft model are the real ones; only
the verifier's end of the stream is replaced. Ablations cost draft steps this way and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from common.types import BridgeMode, FinishReason, ModelInfo, OpenSession, Proposal, Verdict
from drafter.bridge.context import DraftContext
from drafter.session import Pair, SpeculativeSession
from drafter.speculation import speculate
from drafter.verifier_client.client import VerifierClient
from drafter.verifier_client.lost import Answer
from drafter.verifier_client.selection import VerifierHistory


@dataclass(frozen=True)
class Recording:
    """A prompt in target ids, and what the target alone said to it."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    messages: tuple[tuple[str, str], ...] | None = None  # where the prompt was a conversation


@dataclass(frozen=True)
class Round:
    """One round: what came before it, what was proposed, what the target wrote instead."""

    recording: Recording
    base: int  # output tokens committed before it
    proposed: tuple[int, ...]
    accepted: int


class ReplaySession:
    """Takes the place of drafter/verifier_client/client.py's VerifierSession."""

    wire_bytes = 0
    identity = limits = None
    resumed_on = frozenset[str]()

    def __init__(self, recording: Recording, rounds: list[Round]) -> None:
        self._recording = recording
        self._rounds = rounds
        self._done = 0

    async def open(self) -> Answer:
        return self._answer(0, 0)

    async def verify(self, proposal: Proposal) -> Answer:
        truth = self._recording.output[self._done :]
        accepted = 0
        while (
            accepted < len(proposal.token_ids) and proposal.token_ids[accepted] == truth[accepted]
        ):
            accepted += 1
        self._rounds.append(Round(self._recording, self._done, proposal.token_ids, accepted))
        return self._answer(proposal.round, accepted)

    def close(self) -> None:
        pass

    def _answer(self, number: int, accepted: int) -> Answer:
        output = self._recording.output
        self._done += accepted
        following = output[self._done]
        self._done += 1
        reason = FinishReason.LENGTH if self._done == len(output) else None
        length = len(self._recording.prompt) + self._done
        return Answer(Verdict(number, accepted, following, length, reason), 0.0)


class ReplayVerifier:
    """Takes the place of VerifierClient."""

    def __init__(self, recordings: Sequence[Recording], rounds: list[Round]) -> None:
        self._by_prompt = {recording.prompt: recording for recording in recordings}
        self._rounds = rounds
        self.history = VerifierHistory()

    def session(self, spec: OpenSession) -> ReplaySession:
        return ReplaySession(self._by_prompt[spec.prompt], self._rounds)


# What the draft model reads in the modes TEXT and INTERSECTION; may be one object.
MakeContexts = Callable[[Recording], Mapping[BridgeMode, DraftContext]]


async def replay(
    pair: Pair,
    recordings: Sequence[Recording],
    make_contexts: MakeContexts,
    draft_steps: int,
    mode: BridgeMode,
    concurrency: int = 8,
) -> tuple[list[Round], list[SpeculativeSession]]:
    """Run every recording through the real drafter; pair.verifier is replaced."""
    rounds: list[Round] = []
    sessions: list[SpeculativeSession] = []
    stand_in = cast(VerifierClient, ReplayVerifier(recordings, rounds))
    replaying = replace(pair, verifier=stand_in)
    gate = asyncio.Semaphore(concurrency)

    async def run(recording: Recording) -> None:
        async with gate:
            spec = OpenSession(recording.prompt, len(recording.output), pair.info.tokenizer_sha256)
            contexts = make_contexts(recording)
            session = SpeculativeSession(replaying, spec, contexts, draft_steps, mode)
            sessions.append(session)
            async for _ in speculate(session):
                pass

    await asyncio.gather(*(run(recording) for recording in recordings))
    return rounds, sessions


def info_for_replay(tokenizer_sha256: str, vocab_size: int, eos_ids: frozenset[int]) -> ModelInfo:
    """What a verifier of this target would report, without limits in the way."""
    return ModelInfo(
        model="replayed",
        tokenizer_sha256=tokenizer_sha256,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        max_context_length=1 << 20,
        max_draft_tokens=64,
        max_q_entries=256,
        max_sessions=64,
        max_message_bytes=1 << 24,
        row_invariant=True,
        version="bench",
    )


def mean_acceptance_length(rounds: Sequence[Round]) -> float:
    """Mean acceptance length over all rounds of all prompts, next token included."""
    return sum(each.accepted + 1 for each in rounds) / len(rounds)


def first_acceptance(rounds: Sequence[Round]) -> float:
    """Share of the rounds with a proposal whose first token was accepted."""
    drafted = [each for each in rounds if each.proposed]
    return sum(each.accepted > 0 for each in drafted) / len(drafted)


def acceptance(rounds: Sequence[Round]) -> tuple[float, ...]:
    """[i]: the share of rounds proposing at least i + 1 tokens that accepted as many."""
    longest = max(len(each.proposed) for each in rounds)
    shares = []
    for position in range(longest):
        proposing = [each for each in rounds if len(each.proposed) > position]
        shares.append(sum(each.accepted > position for each in proposing) / len(proposing))
    return tuple(shares)


def no_verifier() -> VerifierClient:
    """For a Pair whose verifier `replay` replaces."""
    return cast(VerifierClient, ReplayVerifier((), []))
