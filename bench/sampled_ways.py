"""The ways of sampling that are compared, and what each brought: text, acceptance, bytes.

Knows which settings make a way and how it is counted. Refuses to know whether its text is lawful
(bench/scoring.py), and how anything is drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.progress import Tell
from bench.questions import Question
from cli.client import Client, Output, Request
from common.sampling import SamplingParams
from common.types import AcceptanceRule, BridgeMode, OpenSession
from common.wire_verify import verify_request_to_pb

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
        Way("no-q, text", AcceptanceRule.NO_Q, draft_steps, BridgeMode.TEXT),
        Way("auto", None, draft_steps, BridgeMode.AUTO),
    )


@dataclass
class Drawn:
    """What one way said to some questions, in the order in which they were asked."""

    questions: list[Question] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    opening_bytes: int = 0  # of the messages that opened the sessions: the prompts, in the main

    def first(self, tokens: int) -> list[tuple[Question, Output]]:
        """As many answers as have `tokens` tokens together: reading more takes long.

        By order of asking; by order of ending, short texts would be preferred.
        """
        chosen, count = [], 0
        for question, output in zip(self.questions, self.outputs, strict=True):
            if count >= tokens:
                break
            chosen.append((question, output))
            count += len(output.token_ids)
        return chosen

    @property
    def tokens(self) -> int:
        return sum(each.statistics.output_tokens for each in self.outputs)

    @property
    def rounds(self) -> int:
        return sum(each.statistics.rounds for each in self.outputs)

    @property
    def mean_acceptance_length(self) -> float:
        """AL: committed tokens per round, next token included, prefill excluded."""
        every = [each.statistics for each in self.outputs]
        committed = sum(each.mean_acceptance_length * each.rounds for each in every)
        return committed / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """[i]: the share of rounds drafting at least i + 1 tokens that accepted as many."""
        drafted = _summed([each.statistics.drafted_by_position for each in self.outputs])
        accepted = _summed([each.statistics.accepted_by_position for each in self.outputs])
        return tuple(a / d for a, d in zip(accepted, drafted, strict=True))

    @property
    def bytes_per_token(self) -> float:
        """Everything between the services, both directions, prompts included."""
        return self._wire_bytes / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_round(self) -> float:
        """Both directions, without the messages that opened sessions."""
        return (self._wire_bytes - self.opening_bytes) / self.rounds if self.rounds else 0.0

    def bytes_per_position(self, alone: Drawn) -> float | None:
        """What a drafted position adds to a round of the target alone; None where none is drafted.

        Its id, its law if one goes along, and its share of the verdict's accepted length.
        """
        drafted = sum(sum(each.statistics.drafted_by_position) for each in self.outputs)
        if not drafted or not alone.rounds:
            return None
        return (self.bytes_per_round - alone.bytes_per_round) * self.rounds / drafted

    @property
    def _wire_bytes(self) -> int:
        return sum(each.statistics.wire_bytes for each in self.outputs)


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    """By position; a shorter one counts as 0 where it has none."""
    longest = max((len(each) for each in counts), default=0)
    return [sum(each[i] for each in counts if i < len(each)) for i in range(longest)]


async def draw(
    client: Client,
    asked: Sequence[Question],
    way: Way,
    params: SamplingParams,
    tokens: int,
    max_new_tokens: int,
    streams: int,
    tell: Tell,
) -> Drawn:
    """At least `tokens` tokens of text, the questions in turn, `streams` at a time."""
    made = Drawn()
    answers: dict[int, tuple[Question, Output]] = {}
    count = number = 0

    async def one(number: int) -> None:
        nonlocal count
        question = asked[number % len(asked)]
        seed = number if way.seeded else None
        request = Request(
            max_new_tokens=max_new_tokens,
            messages=question.messages,
            prompt=question.beginning,
            draft_steps=way.draft_steps,
            bridge=way.bridge,
            rule=way.rule,
            sampling=SamplingParams(**{**vars(params), "seed": seed}),
        )
        output = await client.generate(request)
        answers[number] = (question, output)
        made.opening_bytes += _opening_bytes(request, question, output)
        count += len(output.token_ids)
        tell(f"{way.name}, temperature {params.temperature:g}", count, tokens)

    running: set[asyncio.Task[None]] = set()
    while count < tokens:
        while len(running) < streams and count < tokens:
            running.add(asyncio.create_task(one(number)))
            number += 1
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    # Those that still run are awaited: stopping early would prefer short texts.
    await asyncio.gather(*running)
    for _, (question, output) in sorted(answers.items()):
        made.questions.append(question)
        made.outputs.append(output)
    return made


def _opening_bytes(request: Request, question: Question, output: Output) -> int:
    """Of the message by which the drafter opened the session of `request`."""
    rule = output.statistics.rule
    assert rule is not None
    spec = OpenSession(
        question.ids,
        request.max_new_tokens,
        "0" * SHA256_DIGITS,
        rule=rule,
        sampling=request.sampling,
    )
    return verify_request_to_pb(spec).ByteSize()
