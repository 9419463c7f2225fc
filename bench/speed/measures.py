"""One run of one system on one prompt, and what many of them come to.

Knows arithmetic. Does not know how anything was run. All rates are sums over sums, so that long
answers weigh more than short ones, and ratios are made over the prompts that both sides have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MODEL_STAGES = ("draft_model", "verifier_forward")
QUEUE_STAGES = ("draft_queue", "verifier_queue")


@dataclass(frozen=True)
class Run:
    """`rounds` are passes of the target after the first one, which is prefill."""

    system: str
    draft_steps: int
    prompt: str
    token_ids: tuple[int, ...]
    rounds: int
    time_to_first_token_s: float
    total_s: float
    first_run: int = 1  # tokens that came with the first pass
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    stage_s: dict[str, float] = field(default_factory=dict)
    wire_bytes: int = 0
    rounds_by_mode: dict[str, int] = field(default_factory=dict)
    steps_by_round: tuple[int, ...] = ()  # draft steps counted, where a system doesn't promise them

    @property
    def committed(self) -> int:
        """Tokens after the first pass."""
        return len(self.token_ids) - self.first_run

    @property
    def round_s(self) -> float:
        """Seconds after the first pass."""
        return self.total_s - self.time_to_first_token_s


@dataclass(frozen=True)
class Summary:
    """Many prompts through one system."""

    system: str
    draft_steps: int
    prompts: int
    tokens: int
    rounds: int
    mean_acceptance_length: float
    acceptance_by_position: tuple[float, ...]
    tokens_per_s: float
    mean_time_to_first_token_s: float
    wire_bytes_per_token: float
    stage_ms_per_round: dict[str, float]
    round_ms: float
    model_share: float  # of the rounds' time: both models' forward passes
    queue_share: float  # waiting for a model's thread, and what it does beside the passes
    outside_share: float  # the rest: network, bridge, acceptance, text, and what no stage counted
    rounds_by_mode: dict[str, int]


def summarise(runs: Sequence[Run]) -> Summary:
    """Of runs that share system and draft steps."""
    assert runs and len({(run.system, run.draft_steps) for run in runs}) == 1
    rounds = sum(run.rounds for run in runs)
    seconds = sum(run.round_s for run in runs)
    stages: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for run in runs:
        stages.update(run.stage_s)
        modes.update(run.rounds_by_mode)
    models = _share(sum(stages[stage] for stage in MODEL_STAGES), seconds)
    queues = _share(sum(stages[stage] for stage in QUEUE_STAGES), seconds)
    tokens = sum(len(run.token_ids) for run in runs)
    return Summary(
        system=runs[0].system,
        draft_steps=runs[0].draft_steps,
        prompts=len(runs),
        tokens=tokens,
        rounds=rounds,
        mean_acceptance_length=_share(sum(run.committed for run in runs), rounds),
        acceptance_by_position=acceptance(runs),
        tokens_per_s=tokens_per_s(runs),
        mean_time_to_first_token_s=sum(run.time_to_first_token_s for run in runs) / len(runs),
        wire_bytes_per_token=sum(run.wire_bytes for run in runs) / tokens,
        stage_ms_per_round={stage: 1e3 * _share(s, rounds) for stage, s in stages.items()},
        round_ms=1e3 * _share(seconds, rounds),
        model_share=models,
        queue_share=queues,
        outside_share=1 - models - queues if stages else 0.0,
        rounds_by_mode=dict(modes),
    )


def tokens_per_s(runs: Sequence[Run]) -> float:
    """After the first pass, so that prompts of any length compare."""
    return _share(sum(run.committed for run in runs), sum(run.round_s for run in runs))


def acceptance(runs: Sequence[Run]) -> tuple[float, ...]:
    """[i]: the share of rounds drafting at least i + 1 tokens that accepted as many."""
    longest = max(len(run.drafted_by_position) for run in runs)
    drafted, accepted = [0] * longest, [0] * longest
    for run in runs:
        for position, count in enumerate(run.drafted_by_position):
            drafted[position] += count
        for position, count in enumerate(run.accepted_by_position):
            accepted[position] += count
    return tuple(_share(a, d) for a, d in zip(accepted, drafted, strict=True))


def ratio(runs: Sequence[Run], base: Sequence[Run]) -> float | None:
    """Tokens/s against another system's, over the prompts that both have; None without any."""
    shared = {run.prompt for run in runs} & {run.prompt for run in base}
    below = tokens_per_s([run for run in base if run.prompt in shared]) if shared else 0.0
    if not below:
        return None
    return tokens_per_s([run for run in runs if run.prompt in shared]) / below


@dataclass(frozen=True)
class Divergence:
    """Where an output first differs from the target alone; a missing token is None."""

    prompt: str
    at: int
    expected: int | None
    got: int | None
    logit_gap: float | None = None  # between the two, by transformers' own forward pass


def divergences(runs: Sequence[Run], alone: Sequence[Run]) -> list[Divergence]:
    """One for each output that isn't the target's own, token by token."""
    expected = {run.prompt: run.token_ids for run in alone}
    found = []
    for run in runs:
        truth = expected[run.prompt]
        if run.token_ids != truth:
            at = next(
                (i for i, (a, b) in enumerate(zip(truth, run.token_ids, strict=False)) if a != b),
                min(len(truth), len(run.token_ids)),
            )
            pair = [ids[at] if at < len(ids) else None for ids in (truth, run.token_ids)]
            found.append(Divergence(run.prompt, at, pair[0], pair[1]))
    return found


def as_json(value: Any) -> dict[str, Any]:
    """A measure as JSON takes it."""
    return asdict(value)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
