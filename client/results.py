"""What a request returned: tokens, text, log-probabilities and the stream's own statistics.

Knows these values and their JSON. Does not know the protocol (client/client.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from common.sampling.acceptance_rule import AcceptanceRule
from common.types import FinishReason, ModelIdentity, Origin, TokenLogprobs


@dataclass(frozen=True)
class TokenDelta:
    """One committed token, with the text that became complete with it."""

    token_id: int | None  # None: text left over at the end, of no token of its own
    text: str
    origin: Origin | None  # None: an origin that this version doesn't know
    logprobs: TokenLogprobs | None = None  # if asked for
    # On the first ones, if the chat template read the clock: what a resuming request sends back.
    chat_time_us: int | None = None
    # On the first ones: what the target's tokens come from, which it sends back too.
    target: ModelIdentity | None = None


@dataclass(frozen=True)
class Statistics:
    """One stream's own, as the drafter measured them; see Summary in drafter.proto."""

    finish_reason: FinishReason | None
    prompt_tokens: int
    output_tokens: int
    rounds: int
    mean_acceptance_length: float
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    time_to_first_token_s: float
    total_s: float
    stage_s: dict[str, float]  # seconds by stage of a round
    wire_bytes: int
    intersection_rounds: int
    text_rounds: int
    drafting: bool
    rule: AcceptanceRule | None = None
    stop_string: str = ""
    outside_us: tuple[int, ...] = ()
    queue_us: tuple[int, ...] = ()
    target: ModelIdentity | None = None  # of the verifier that had the session last
    resumed_on: tuple[str, ...] = ()  # parts of it that changed in mid-stream

    @property
    def tokens_per_s(self) -> float:
        """Output after the first token, so that prompts of any length compare."""
        seconds = self.total_s - self.time_to_first_token_s
        return (self.output_tokens - 1) / seconds if seconds > 0 else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """[i]: the share of rounds drafting at least i + 1 tokens that accepted as many."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=False)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)


@dataclass(frozen=True)
class Output:
    """Everything that one request returned."""

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin | None, ...]
    statistics: Statistics
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, if asked for

    def as_json(self) -> dict[str, Any]:
        statistics = asdict(self.statistics)
        reason, rule = statistics.pop("finish_reason"), statistics.pop("rule")
        logprobs = {"logprobs": [asdict(each) for each in self.logprobs]} if self.logprobs else {}
        prompt, output = self.statistics.prompt_tokens, self.statistics.output_tokens
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "origins": [origin.value if origin else None for origin in self.origins],
            **logprobs,
            "finish_reason": reason.value if reason else None,
            "stop_string": statistics.pop("stop_string") or None,
            "rule": rule.label if rule else None,
            "usage": {
                "prompt_tokens": prompt,
                "output_tokens": output,
                "total_tokens": prompt + output,
            },
            "statistics": {
                **statistics,
                "tokens_per_s": self.statistics.tokens_per_s,
                "acceptance_by_position": self.statistics.acceptance_by_position,
            },
        }
