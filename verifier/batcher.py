"""Who runs in the next forward pass.

No fixed window: while one step runs, work gathers, and the next step takes all of it up to
`max_batch_tokens`, decode rows before prefill rows, first come first served within each. Knows
sessions and rows, and who is about to come back. Does not know models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.engine.scheduler import pack
from common.model.batch import Chunk
from verifier.session import Session


@dataclass(frozen=True)
class Batch:
    """One forward pass: chunks of some sessions, and those that are verified in it."""

    chunks: list[Chunk]
    running: list[Session]  # all whose rows are here
    # Those whose last pending rows are here, which get a verdict, in the order of their logits.
    verified: list[Session]

    @property
    def rows(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    def halves(self) -> tuple[Batch, Batch]:
        """Of the sessions, if there are two at least."""
        middle = len(self.running) // 2
        first, last = self.running[:middle], self.running[middle:]
        return (
            Batch(self.chunks[:middle], first, [s for s in self.verified if s in first]),
            Batch(self.chunks[middle:], last, [s for s in self.verified if s in last]),
        )

    def offsets(self) -> Tensor:
        """int64 [verified + 1]: where each verified session's k + 1 logit rows begin."""
        counts = [0] + [session.sequence.wanted for session in self.verified]
        return torch.tensor(counts).cumsum(0)

    def draft_tokens(self) -> Tensor:
        """int64 [logit rows]: each row's draft token; a session's last row has none, shown as 0."""
        tokens: list[int] = []
        for session in self.verified:
            tokens += [*session.draft, 0]
        return torch.tensor(tokens)


class Batcher:
    """Sessions, and those of them that wait for a round; used on the engine's thread only."""

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_rows = max_batch_tokens
        self._sessions: dict[Session, None] = {}  # an ordered set
        self._waiting: dict[Session, None] = {}
        self._step = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def waiting(self) -> int:
        """How many sessions have a round to be checked; may be asked from any thread."""
        return len(self._waiting)

    def add(self, session: Session) -> None:
        self._sessions[session] = None

    def wait(self, session: Session) -> None:
        """The session has a round to be checked."""
        if session in self._sessions:
            self._waiting[session] = None

    def remove(self, session: Session) -> None:
        """Free everything the session holds. Once is enough; twice is harmless."""
        self._sessions.pop(session, None)
        self._waiting.pop(session, None)
        session.sequence.table.release()

    def expected_by(self, limit: float) -> float:
        """Until when (time.monotonic, at most `limit`) waiting pays: somebody waits, and others
        whose verdicts have just left are expected with their next proposals. 0.0: not at all.

        Without this, sessions that answer within milliseconds part into two groups that take turns:
        each finds the other's pass begun, and half of a round is spent in the queue.
        """
        if not self._waiting:
            return 0.0
        due = (s.due_at for s in self._sessions if s.due_at is not None and s.due_at <= limit)
        return max(due, default=0.0)

    def next_batch(self) -> Batch | None:
        """What to run now, pages reserved; None when nobody waits but for others' pages."""
        if not self._waiting:
            return None
        self._step += 1
        by_sequence = {session.sequence: session for session in self._waiting}
        everyone = [session.sequence for session in self._sessions]
        packed = pack(list(by_sequence), everyone, self._max_rows, self._step)
        if not packed:
            return None
        # A GPU verifies sessions with logits processors apart, and a row doesn't mind where it is.
        packed.sort(key=lambda part: by_sequence[part.sequence].spec.sampling.processes_logits)
        running = [by_sequence[part.sequence] for part in packed]
        verified = [by_sequence[part.sequence] for part in packed if part.complete]
        for session in verified:
            del self._waiting[session]
        return Batch([part.chunk for part in packed], running, verified)
