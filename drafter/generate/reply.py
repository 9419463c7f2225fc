"""What a Generate stream tells its client: pieces as they are certain, and the summary.

Knows how committed tokens become text, where stop strings end it, and that text, ids,
log-probabilities and usage end at one token. Refuses to know how tokens were committed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from common.pb import drafter_pb2 as pb
from common.types import BridgeMode, FinishReason
from common.vocabulary.vocabulary import Vocabulary
from common.wire import generate as wire_generate
from drafter.generate.detokenize import StreamingText
from drafter.generate.stop_strings import Released, StopFilter
from drafter.session import CommittedRun, SpeculativeSession


@dataclass(frozen=True)
class Completion:
    """What a whole answer came to."""

    reason: FinishReason
    output_tokens: int
    any_text: bool


class Reply:
    """One stream's."""

    def __init__(
        self,
        target: Vocabulary,
        session: SpeculativeSession,
        stops: Sequence[bytes],
        resumed: Sequence[int] = (),
    ) -> None:
        """resumed: output that the client has; it may be all of it."""
        self._target = target
        self._session = session
        self._text = StreamingText()
        self._filter: StopFilter[pb.TokenDelta] = StopFilter(stops)
        self._reason: FinishReason | None = None
        self._output_tokens = 0
        self._any_text = False
        self._known = len(resumed)  # so many pieces are with the client already
        for token_id in resumed:
            self._take(pb.TokenDelta(token_id=token_id))
            if self._filter.found is not None:
                break
        self._reason = FinishReason.STOP if self._filter.found else session.ended

    @property
    def over(self) -> bool:
        """Whether nothing comes any more but `last`."""
        return self._reason is not None

    @property
    def ending(self) -> Completion:
        """How the stream ended; once `last` was made."""
        assert self._reason is not None
        return Completion(self._reason, self._output_tokens, self._any_text)

    def deltas(self, run: CommittedRun) -> list[pb.TokenDelta]:
        """The tokens that certainly stand now, this run's or earlier ones'."""
        began = time.monotonic()
        deltas: list[pb.TokenDelta] = []
        for index, token_id in enumerate(run.token_ids):
            delta = pb.TokenDelta(token_id=token_id)
            delta.origin = wire_generate.origin_to_pb(run.origins[index])
            if run.logprobs:
                told = run.logprobs[index]
                delta.logprob = told.logprob
                delta.top_token_ids.extend(told.top_ids)
                delta.top_logprobs.extend(told.top_logprobs)
            deltas += self._take(delta)
            if self._filter.found is not None:
                self._reason = FinishReason.STOP
                break
        else:
            self._reason = run.finish_reason
        self._session.statistics.stage_s["detokenize"] += time.monotonic() - began
        self._session.statistics.end_round()
        return deltas

    def last(self, deltas: list[pb.TokenDelta]) -> pb.GenerateResponse:
        """The last message: `deltas`, what was held back, and the summary."""
        released, rest = self._filter.flush()
        deltas = [*deltas, *self._spelled(released)]
        tail = self._text.push(rest) + self._text.flush()
        self._any_text |= bool(tail)
        session, statistics = self._session, self._session.statistics
        first = statistics.first_token_at or statistics.began
        summary = pb.Summary(
            stop_reason=wire_generate.stop_reason_to_pb(self._reason),
            prompt_tokens=session.prompt_length,
            output_tokens=self._output_tokens,
            rounds=statistics.rounds,
            mean_acceptance_length=statistics.mean_acceptance_length,
            drafted_by_position=statistics.drafted_by_position,
            accepted_by_position=statistics.accepted_by_position,
            time_to_first_token_s=first - statistics.began,
            total_s=time.monotonic() - statistics.began,
            stage_s=statistics.stage_s,
            wire_bytes=statistics.wire_bytes,
            intersection_rounds=statistics.rounds_by_mode[BridgeMode.INTERSECTION],
            text_rounds=statistics.rounds_by_mode[BridgeMode.TEXT],
            tail_text=tail,
            drafting=session.drafting,
            rule=wire_generate.rule_to_pb(session.rule),
            stop_string=(self._filter.found or b"").decode(),
            outside_us=statistics.outside_us,
            queue_us=statistics.queue_us,
        )
        return pb.GenerateResponse(deltas=deltas, summary=summary)

    def _take(self, delta: pb.TokenDelta) -> list[pb.TokenDelta]:
        """The pieces that stand now that this one came."""
        special = self._target.is_special(delta.token_id)
        data = b"" if special else self._target.token_bytes(delta.token_id)
        return self._spelled(self._filter.push(delta, data))

    def _spelled(self, released: Sequence[Released[pb.TokenDelta]]) -> list[pb.TokenDelta]:
        """Pieces with the text that became whole with them, those left out that the client has."""
        before = self._output_tokens
        self._output_tokens += len(released)
        for delta, data in released:
            delta.text = self._text.push(data)
            self._any_text |= bool(delta.text)
        return [delta for delta, _ in released[max(0, self._known - before) :]]
