"""The ways of sampling that are compared, and what each brought: text, acceptance, bytes.

Knows which settings make a way and how it is counted. Does not know whether its text is lossless
(bench/acceptance/scoring.py), and how anything is sampled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.support.progress import ReportProgress
from bench.support.target_prompts import TargetPrompt
from client.client import Client, Output, Request
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, OpenSession
from common.wire.verify import verify_request_to_pb

SHA256_DIGITS = 64


@dataclass(frozen=True)
class Way:
    """One way of sampling: which rule, and what drafts; 0 draft steps are the target alone."""

    name: str
    rule: AcceptanceRule | None
    draft_steps: int
    bridge: BridgeMode | None = None
    seeded: bool = False


def ways(draft_steps: int) -> tuple[Way, ...]:
    """The control first, then each rule over the bridge that suits it."""
    return (
        Way("target alone", None, 0),
        Way("rejection", AcceptanceRule.REJECTION, draft_steps, BridgeMode.INTERSECTION),
        Way("coupled", AcceptanceRule.COUPLED, draft_steps, BridgeMode.INTERSECTION, seeded=True),
        Way("target-only, text", AcceptanceRule.TARGET_ONLY, draft_steps, BridgeMode.TEXT),
        Way("auto", None, draft_steps, BridgeMode.AUTO),
    )


@dataclass(frozen=True)
class Answer:
    """One output, in what JSON can hold: the ids, and what its stream counted."""

    prompt: tuple[int, ...]  # ids, as the target reads them
    output: tuple[int, ...]  # ids
    rule: str
    rounds: int
    committed: int  # in those rounds, so that the prefill's token is left out
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    wire_bytes: int  # between the services, both directions
    opening_bytes: int  # of them, the message that opened the session: the prompt, in the main

    @classmethod
    def of(cls, request: Request, target_prompt: TargetPrompt, output: Output) -> Answer:
        reported = output.statistics
        assert reported.rule is not None
        return cls(
            target_prompt.ids,
            output.token_ids,
            reported.rule.name,
            reported.rounds,
            round(reported.mean_acceptance_length * reported.rounds),
            reported.drafted_by_position,
            reported.accepted_by_position,
            reported.wire_bytes,
            _opening_bytes(request, target_prompt, reported.rule),
        )


@dataclass(frozen=True)
class Sampled:
    """What one way said to some questions, in the order in which they were asked."""

    answers: tuple[Answer, ...]

    def first(self, tokens: int) -> list[Answer]:
        """As many answers as have `tokens` tokens together: reading more takes long.

        By order of asking; by order of ending, short texts would be preferred.
        """
        chosen, count = [], 0
        for answer in self.answers:
            if count >= tokens:
                break
            chosen.append(answer)
            count += len(answer.output)
        return chosen

    @property
    def tokens(self) -> int:
        return sum(len(each.output) for each in self.answers)

    @property
    def rounds(self) -> int:
        return sum(each.rounds for each in self.answers)

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per round, next token included, prefill excluded."""
        committed = sum(each.committed for each in self.answers)
        return committed / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """[i]: the share of rounds drafting at least i + 1 tokens that accepted as many."""
        drafted = _summed([each.drafted_by_position for each in self.answers])
        accepted = _summed([each.accepted_by_position for each in self.answers])
        return tuple(a / d for a, d in zip(accepted, drafted, strict=True))

    @property
    def bytes_per_token(self) -> float:
        """Everything between the services, both directions, prompts included."""
        wire_bytes = sum(each.wire_bytes for each in self.answers)
        return wire_bytes / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_round(self) -> float:
        """Both directions, without the messages that opened sessions."""
        later = sum(each.wire_bytes - each.opening_bytes for each in self.answers)
        return later / self.rounds if self.rounds else 0.0

    def bytes_per_position(self, alone: Sampled) -> float | None:
        """What a drafted position adds to a round of the target alone; None where none is drafted.

        Its id, its distribution if one goes along, and its share of the verdict's accepted length.
        """
        drafted = sum(sum(each.drafted_by_position) for each in self.answers)
        if not drafted or not alone.rounds:
            return None
        return (self.bytes_per_round - alone.bytes_per_round) * self.rounds / drafted

    def save(self, path: Path, key: Mapping[str, Any]) -> None:
        """key: all that the samples depend on."""
        reported = {"key": key, "answers": [asdict(each) for each in self.answers]}
        path.write_text(json.dumps(reported, default=str) + "\n")

    @classmethod
    def load(cls, path: Path, key: Mapping[str, Any]) -> Sampled | None:
        """What was saved under the same key; None if nothing was."""
        if not path.exists():
            return None
        reported = json.loads(path.read_text())
        if reported["key"] != json.loads(json.dumps(key, default=str)):
            return None
        return cls(tuple(Answer(**_tuples(each)) for each in reported["answers"]))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    """By position; a shorter one counts as 0 where it has none."""
    longest = max((len(each) for each in counts), default=0)
    return [sum(each[i] for each in counts if i < len(each)) for i in range(longest)]


async def sample(
    client: Client,
    asked: Sequence[TargetPrompt],
    way: Way,
    params: SamplingParams,
    tokens: int,
    max_new_tokens: int,
    streams: int,
    report_progress: ReportProgress,
) -> Sampled:
    """At least `tokens` tokens of text, the questions in turn, `streams` at a time."""
    answers: dict[int, Answer] = {}
    count = number = 0

    async def one(number: int) -> None:
        nonlocal count
        target_prompt = asked[number % len(asked)]
        seed = number if way.seeded else None
        request = Request(
            max_new_tokens=max_new_tokens,
            messages=target_prompt.messages,
            prompt=target_prompt.beginning,
            draft_steps=way.draft_steps,
            bridge=way.bridge,
            rule=way.rule,
            sampling=SamplingParams(**{**vars(params), "seed": seed}),
        )
        output = await client.generate(request)
        answers[number] = Answer.of(request, target_prompt, output)
        count += len(output.token_ids)
        report_progress(f"{way.name}, temperature {params.temperature:g}", count, tokens)

    running: set[asyncio.Task[None]] = set()
    while count < tokens:
        # No more than could be needed if every one that runs came to its limit.
        while len(running) < streams and count + len(running) * max_new_tokens < tokens:
            running.add(asyncio.create_task(one(number)))
            number += 1
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    # Those that still run are awaited: stopping early would prefer short texts.
    await asyncio.gather(*running)
    return Sampled(tuple(answer for _, answer in sorted(answers.items())))


def _opening_bytes(request: Request, target_prompt: TargetPrompt, rule: AcceptanceRule) -> int:
    """Of the message by which the drafter opened the session of `request`."""
    spec = OpenSession(
        target_prompt.ids,
        request.max_new_tokens,
        "0" * SHA256_DIGITS,
        rule=rule,
        sampling=request.sampling,
    )
    return verify_request_to_pb(spec).ByteSize()
