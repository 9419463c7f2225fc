"""What a Generate stream sends: token deltas as soon as they are final, and the summary.

Knows how committed tokens become text, where stop strings end it, and that text, ids,
log-probabilities and usage end at the same token. Does not know how tokens were committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.pb import drafter_pb2 as pb
from common.types import BridgeMode, FinishReason
from common.vocabulary.vocabulary import Vocabulary
from common.wire.enums import FINISH_REASONS, ORIGINS, RULES
from common.wire.generate import deltas_response, microseconds, stage_times_to_pb
from common.wire.identity import identity_to_pb
from common.wire.sampling import logprobs_to_pb
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
        chat_time_us: int | None = None,
    ) -> None:
        """resumed: output that the client has; it may be all of it.

        chat_time_us: what the client needs to resume, beside that output.
        """
        self._target = target
        self._session = session
        self._text = StreamingText()
        self._filter: StopFilter[pb.TokenDelta] = StopFilter(stops)
        self._reason: FinishReason | None = None
        self._introduced = False  # whether the first deltas have left
        self._output_tokens = 0
        self._any_text = False
        self._chat_time_us = chat_time_us  # until it is sent
        self._known = len(resumed)  # how many tokens the client has already
        self._last_origin: pb.TokenOrigin = pb.TOKEN_ORIGIN_VERIFIER  # of the newest token sent
        for token_id in resumed:
            self._take(pb.TokenDelta(token_id=token_id))
            if self._filter.found is not None:
                break
        self._reason = FinishReason.STOP if self._filter.found else session.ended

    @property
    def over(self) -> bool:
        """Whether only `last` is left to send."""
        return self._reason is not None

    @property
    def ending(self) -> Completion:
        """How the stream ended; once `last` was made."""
        assert self._reason is not None
        return Completion(self._reason, self._output_tokens, self._any_text)

    def deltas(self, run: CommittedRun) -> list[pb.TokenDelta]:
        """The tokens that are final now, of this run or of earlier ones."""
        began = time.monotonic()
        deltas: list[pb.TokenDelta] = []
        for index, token_id in enumerate(run.token_ids):
            delta = pb.TokenDelta(token_id=token_id)
            delta.origin = ORIGINS.to_pb(run.origins[index])
            if run.logprobs:
                delta.logprobs.CopyFrom(logprobs_to_pb(run.logprobs[index]))
            deltas += self._take(delta)
            if self._filter.found is not None:
                self._reason = FinishReason.STOP
                break
        else:
            self._reason = run.finish_reason
        self._session.statistics.stage_s["detokenize"] += time.monotonic() - began
        self._session.statistics.end_round()
        return deltas

    def response(self, deltas: Sequence[pb.TokenDelta]) -> pb.GenerateResponse:
        """The next message with deltas."""
        response = deltas_response(deltas, self._chat_time_us)
        self._chat_time_us = None
        if not self._introduced:
            self._introduced = True
            if self._session.identity is not None:
                response.target.CopyFrom(identity_to_pb(self._session.identity))
        return response

    def last(self, deltas: list[pb.TokenDelta]) -> Iterator[pb.GenerateResponse]:
        """The last messages: `deltas` with what was kept back, and the summary."""
        released, rest = self._filter.flush()
        deltas = [*deltas, *self._with_text(released)]
        left_over = self._text.push(rest) + self._text.flush()
        if left_over:
            self._any_text = True
            origin = deltas[-1].origin if deltas else self._last_origin
            deltas.append(pb.TokenDelta(text=left_over, origin=origin))
        if deltas:
            yield self.response(deltas)
        yield pb.GenerateResponse(summary=self._summary())

    def _summary(self) -> pb.Summary:
        session, statistics = self._session, self._session.statistics
        first = statistics.first_token_at or statistics.began
        return pb.Summary(
            finish_reason=FINISH_REASONS.to_pb(self._reason),
            prompt_tokens=session.prompt_length,
            output_tokens=self._output_tokens,
            rounds=statistics.rounds,
            mean_acceptance_length=statistics.mean_acceptance_length,
            drafted_by_position=statistics.drafted_by_position,
            accepted_by_position=statistics.accepted_by_position,
            time_to_first_token_us=microseconds(first - statistics.began),
            total_us=microseconds(time.monotonic() - statistics.began),
            stage_times=stage_times_to_pb(statistics.stage_s),
            wire_bytes=statistics.wire_bytes,
            intersection_rounds=statistics.rounds_by_mode[BridgeMode.INTERSECTION],
            text_rounds=statistics.rounds_by_mode[BridgeMode.TEXT],
            drafting=session.drafting,
            acceptance_rule=RULES.to_pb(session.rule),
            stop_string=(self._filter.found or b"").decode(),
            outside_us=statistics.outside_us,
            queue_us=statistics.queue_us,
            target=identity_to_pb(self._session.identity)
            if self._session.identity is not None
            else None,
            resumed_on=statistics.resumed_on,
        )

    def _take(self, delta: pb.TokenDelta) -> list[pb.TokenDelta]:
        """The deltas that are final once this one has come."""
        special = self._target.is_special(delta.token_id)
        data = b"" if special else self._target.token_bytes(delta.token_id)
        return self._with_text(self._filter.push(delta, data))

    def _with_text(self, released: Sequence[Released[pb.TokenDelta]]) -> list[pb.TokenDelta]:
        """Deltas with the text that became complete with them, without those the client has."""
        before = self._output_tokens
        self._output_tokens += len(released)
        for delta, data in released:
            delta.text = self._text.push(data)
            self._any_text |= bool(delta.text)
        new = [delta for delta, _ in released[max(0, self._known - before) :]]
        if new:
            self._last_origin = new[-1].origin
        return new
