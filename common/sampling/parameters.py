"""What a request may ask of the distribution that its tokens follow, and what it may not.

Knows each parameter's range and what "not set" means. Does not know logits
(common/sampling/distribution.py) and messages. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import InvalidField

MIN_TEMPERATURE = 1e-6  # below it, except 0, float32 logits overflow
MAX_TEMPERATURE = 100.0
MAX_BIAS = 100.0
MAX_BIASES = 1024  # of one request
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0  # below it logits overflow, or divide by 0
MAX_PENALTY = 2.0  # presence and frequency, as OpenAI's API has them
MAX_LOGPROBS = 20
MAX_ID = (1 << 31) - 1
MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True)
class SamplingParams:
    """One request's sampling. None means not set: the step is left out.

    Constructing one checks every value. Raises InvalidField, naming the field, its value and limit.
    """

    temperature: float | None = None  # None and 0: greedy, the argmax
    top_k: int | None = None  # at least 1; more than the vocabulary keeps all
    top_p: float | None = None  # [0, 1]; 0 keeps the likeliest only, 1 keeps all
    min_p: float | None = None  # [0, 1], of the likeliest one's probability
    seed: int | None = None  # 64 bits; None: fresh entropy for every request
    repetition_penalty: float | None = None  # 0.01 to 100, divides positive logits (CTRL, 2019)
    presence_penalty: float | None = None  # [-2, 2], once per id in the output so far
    frequency_penalty: float | None = None  # [-2, 2], per occurrence in the output so far
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, bias), ids distinct
    min_new_tokens: int = 0  # no eos and no stop id before so many new tokens
    logprobs: int | None = None  # of committed tokens, with so many alternatives; None: none

    def __post_init__(self) -> None:
        hot = f"0 (greedy) or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        self._check("temperature", hot, lambda x: x == 0 or MIN_TEMPERATURE <= x <= MAX_TEMPERATURE)
        self._check("top_k", f"from 1 to {MAX_ID}", lambda x: 1 <= x <= MAX_ID, whole=True)
        self._check("top_p", "from 0 to 1", lambda x: 0 <= x <= 1)
        self._check("min_p", "from 0 to 1", lambda x: 0 <= x <= 1)
        self._check("seed", f"from 0 to {MAX_SEED}", lambda x: 0 <= x <= MAX_SEED, whole=True)
        limit = f"from {MIN_REPETITION:g} to {MAX_REPETITION:g}"
        self._check("repetition_penalty", limit, lambda x: MIN_REPETITION <= x <= MAX_REPETITION)
        for name in ("presence_penalty", "frequency_penalty"):
            limit = f"from -{MAX_PENALTY:g} to {MAX_PENALTY:g}"
            self._check(name, limit, lambda x: abs(x) <= MAX_PENALTY)
        self._check("min_new_tokens", f"from 0 to {MAX_ID}", lambda x: 0 <= x <= MAX_ID, whole=True)
        limit = f"from 0 to {MAX_LOGPROBS}"
        self._check("logprobs", limit, lambda x: 0 <= x <= MAX_LOGPROBS, whole=True)
        self._check_bias()

    @property
    def greedy(self) -> bool:
        """Whether the rule is greedy: the argmax, and ties to the lowest id."""
        return self.temperature is None or self.temperature == 0

    @property
    def one_token(self) -> bool:
        """Whether the distribution is one token, ties aside: greedy by rule, or by a filter."""
        return self.greedy or self.top_k == 1 or self.top_p == 0 or self.min_p == 1

    @property
    def processes_logits(self) -> bool:
        """Whether logits change by token before temperature: bias, penalties, min_new_tokens."""
        return bool(
            self.logit_bias
            or self.min_new_tokens
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty not in (None, 1.0)
        )

    def check_ids(self, vocab_size: int) -> None:
        """Raise InvalidField if an id of logit_bias isn't one of the target's."""
        for token_id, _ in self.logit_bias:
            if token_id >= vocab_size:
                raise InvalidField("sampling.logit_bias", f"for id {token_id}", f"< {vocab_size}")

    def _check(
        self, name: str, limit: str, holds: Callable[[float], bool], whole: bool = False
    ) -> None:
        value = getattr(self, name)
        if value is None:
            return
        kinds = int if whole else (int, float)
        number = isinstance(value, kinds) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not holds(value):
            raise InvalidField(f"sampling.{name}", value, limit)

    def _check_bias(self) -> None:
        field = "sampling.logit_bias"
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidField(
                field, f"{len(self.logit_bias)} entries long", f"at most {MAX_BIASES}"
            )
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id <= MAX_ID:
                raise InvalidField(field, f"for id {token_id}", f"from 0 to {MAX_ID}")
            if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
                limit = f"from -{MAX_BIAS:g} to {MAX_BIAS:g}"
                raise InvalidField(field, f"{bias} for id {token_id}", limit)
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidField(field, "given twice for an id", "given once for each id")
