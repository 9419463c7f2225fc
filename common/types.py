"""The glossary in code: frozen values that cross packages. No torch, no protobuf.

target / draft      the large / the small model
p                   the distribution that the target's next token must follow
q                   the distribution that a draft token was really sampled from
proposal            k >= 0 draft tokens in target ids, extending a known base
accepted length a   how many of them are accepted, 0 <= a <= k
next token          the one token the verifier adds after them: a replacement after a rejection,
                    a bonus after full acceptance
committed           prompt + accepted + next tokens
round               one proposal and its verdict; round 0 is the prefill
mean acceptance     committed tokens per round, next token included, prefill excluded
length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams


class FinishReason(Enum):
    """Why a session ended."""

    STOP = "stop"  # an eos or stop id, which is the last committed token
    LENGTH = "length"  # max_new_tokens reached
    CONTEXT = "context"  # the model's context is full
    OTHER = "other"  # a newer peer's reason, which this version can't name


class BridgeMode(Enum):
    """How proposals cross from the draft vocabulary to the target's."""

    INTERSECTION = "intersection"
    TEXT = "text"
    AUTO = "auto"


class Origin(Enum):
    """Where a committed token came from."""

    DRAFT = "draft"
    VERIFIER = "verifier"


@dataclass(frozen=True)
class ModelIdentity:
    """What a verifier's tokens depend on. Parts are compared; the hashes are SHA-256, in hex."""

    weights: str  # of the model's configuration and weights, as stored
    numerics: str  # what they are computed with, for people to read
    tokenizer: str  # of tokenizer.json and its configuration
    chat_template: str  # "" if there is none

    def differing(self, other: ModelIdentity) -> tuple[str, ...]:
        """The parts that aren't the other's."""
        return tuple(part for part in IDENTITY_PARTS if getattr(self, part) != getattr(other, part))


IDENTITY_PARTS = tuple(each.name for each in fields(ModelIdentity))


@dataclass(frozen=True)
class SessionLimits:
    """What the verifier that has a session takes at most."""

    max_context_length: int
    max_draft_tokens: int
    max_q_entries: int  # (id, probability) pairs in one row of q


@dataclass(frozen=True)
class OpenSession:
    """What starts a session at the verifier."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    tokenizer_sha256: str
    stop_ids: frozenset[int] = frozenset()
    rule: AcceptanceRule = AcceptanceRule.GREEDY
    ignore_eos: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    # How many tokens at the prompt's end are output of this session before it was reopened.
    resumed_output_tokens: int = 0
    # Of the verifier where it began, if it is opened again, and which parts of it may differ.
    identity: ModelIdentity | None = None
    resume_on: frozenset[str] = frozenset()

    def ends(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """The ids that end the session. eos_ids: the target's own."""
        return self.stop_ids if self.ignore_eos else self.stop_ids | eos_ids

    def resumed(
        self,
        committed: Sequence[int],
        identity: ModelIdentity | None = None,
        resume_on: frozenset[str] = frozenset(),
    ) -> OpenSession:
        """What is left of this session. committed: its prompt, and the output that it has had."""
        done = len(committed) - len(self.prompt)
        return replace(
            self,
            prompt=tuple(committed),
            max_new_tokens=self.max_new_tokens - done,
            resumed_output_tokens=self.resumed_output_tokens + done,
            identity=identity,
            resume_on=resume_on,
        )


@dataclass(frozen=True)
class SparseDistribution:
    """q: the distribution that one draft token was sampled from, over the ids with any probability.

    A token that came from no distribution has one entry: itself, with probability 1.
    """

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]  # as many as ids; they sum to 1


@dataclass(frozen=True)
class Proposal:
    """k draft tokens that extend the first `base_length` committed tokens."""

    round: int
    base_length: int
    token_ids: tuple[int, ...]
    q: tuple[
        SparseDistribution, ...
    ] = ()  # one for each draft token under REJECTION, otherwise none


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms under the target's softmax, before any logits processor."""

    logprob: float  # of the committed token
    top_ids: tuple[int, ...] = ()  # the likeliest at its place, best first
    top_logprobs: tuple[float, ...] = ()  # as many


@dataclass(frozen=True)
class RoundCost:
    """Where a round's time went (microseconds) and what shared its last forward pass."""

    queue_us: int = 0
    forward_us: int = 0
    accept_us: int = 0
    batch_sessions: int = 0
    batch_rows: int = 0


@dataclass(frozen=True)
class Verdict:
    """The answer to a proposal; next_token is None only if the session ended inside the run."""

    round: int
    accepted_length: int
    next_token: int | None
    committed_length: int
    finish_reason: FinishReason | None = None
    cost: RoundCost = field(default_factory=RoundCost)
    logprobs: tuple[
        TokenLogprobs, ...
    ] = ()  # of each token committed, if the session requested them
    # On the first verdict of a stream, unless the verifier is older than these.
    identity: ModelIdentity | None = None
    limits: SessionLimits | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What a verifier serves, and its limits."""

    model: str
    tokenizer_sha256: str
    vocab_size: int
    eos_ids: frozenset[int]
    max_context_length: int
    max_draft_tokens: int
    max_q_entries: int  # (id, probability) pairs in one row of q
    max_sessions: int
    max_message_bytes: int
    row_invariant: bool
    version: str
    device: str = "cpu"  # as torch writes it
    dtype: str = "float32"
    features: frozenset[str] = frozenset()  # what required_features may name there
    identity: ModelIdentity | None = None  # None: the verifier is older than this

    @property
    def limits(self) -> SessionLimits:
        """Of each of its sessions."""
        return SessionLimits(self.max_context_length, self.max_draft_tokens, self.max_q_entries)
