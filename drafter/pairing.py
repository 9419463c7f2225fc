"""Which target the draft model is paired with now, and what happens when verifiers serve another.

Knows when verifiers must be asked again, and that nobody is served meanwhile. Does not know how a
pair is made (drafter/startup.py), and streams, which keep the pair that they began with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, replace

from common.errors import CrossdraftError, TokenizerMismatch, VerifierUnavailable
from drafter.session import CommittedRun, Pair, SpeculativeSession
from drafter.speculation import speculate
from drafter.verifier_client.lost import VerifierLost, VerifierRefused

log = logging.getLogger(__name__)

RETRY_S = 2.0  # between attempts to pair with what verifiers serve now
WAIT_S = 10.0  # that a stream waits for the new pair; a tokenizer of 33 MB takes 3

_OF_TEXT = frozenset({"tokenizer", "chat_template"})  # what a prompt's ids depend on

Rebuild = Callable[[Pair], Awaitable[Pair]]


class OutdatedTarget(Exception):
    """The verifier reads this stream's ids as another text than the one they were made of."""

    def __init__(self, refusal: CrossdraftError) -> None:
        """refusal: the client's answer, if reading its request again can't mend it."""
        super().__init__(str(refusal))
        self.refusal = refusal


class Pairing:
    """The pair of new streams."""

    def __init__(self, pair: Pair, rebuild: Rebuild) -> None:
        """rebuild: makes a pair of what verifiers serve now out of the last one."""
        self._pair = pair
        self._rebuild = rebuild
        self._renewing: asyncio.Task[None] | None = None
        self._why = ""  # there is no pair now; "" if there is
        self._set_serving: Callable[[bool], None] = lambda serving: None
        self._met = {(pair.info.identity, pair.info.limits)}
        self.changes = 0

    def report_to(self, set_serving: Callable[[bool], None]) -> None:
        """set_serving: is called when there is no pair any more, and when there is one again."""
        self._set_serving = set_serving

    @property
    def last(self) -> Pair:
        """Of the newest streams, also while there is none."""
        return self._pair

    @property
    def current(self) -> Pair:
        """Raises VerifierUnavailable while there is none."""
        if self._why:
            raise VerifierUnavailable(f"the verifiers serve another target now: {self._why}")
        return self._pair

    async def watched(
        self, session: SpeculativeSession, pair: Pair, over: bool, rendered: bool
    ) -> AsyncGenerator[CommittedRun, None]:
        """As speculate(session, over). Raises OutdatedTarget instead of the first run.

        rendered: whether the prompt came out of the target's chat template.
        """
        first = True
        async with aclosing(speculate(session, over)) as runs:
            try:
                async for run in runs:
                    if first:
                        self._meet(session, pair, rendered)
                        first = False
                    yield run
            except VerifierRefused as cause:
                if first and cause.reason == TokenizerMismatch.reason:
                    raise OutdatedTarget(cause) from cause
                raise

    def _meet(self, session: SpeculativeSession, pair: Pair, rendered: bool) -> None:
        """What a stream's verifier serves and takes counts for later streams, too.

        A prompt may be as long as any verifier takes: who takes less refuses it itself.
        """
        identity, limits, own = session.identity, session.limits, pair.info.identity
        if identity is not None and own is not None:
            changed = _OF_TEXT.intersection(own.differing(identity))
            if changed and (rendered or "tokenizer" in changed):
                what = f"the target's {' and '.join(sorted(changed))} changed meanwhile"
                raise OutdatedTarget(VerifierUnavailable(what))
            if changed:
                return  # the next chat will notice
        if pair is not self._pair or (identity, limits) in self._met:
            return
        self._met.add((identity, limits))
        longest = max(limits.max_context_length, pair.info.max_context_length)
        info = replace(pair.info, **asdict(limits), identity=identity or own)
        self._pair = replace(pair, info=replace(info, max_context_length=longest))

    async def renew(self, outdated: Pair) -> None:
        """Return when there is another pair than this one. Raises VerifierUnavailable."""
        self.begin_renewing(outdated)
        if self._renewing is not None:
            await asyncio.wait([self._renewing], timeout=WAIT_S)
        _ = self.current

    def begin_renewing(self, outdated: Pair) -> None:
        """Read what verifiers serve now, unless that has been done or is going on."""
        if self._pair is not outdated or self._why:
            return
        log.warning("the verifiers serve another target: reading what it is")
        self._why = "its tokenizer is being read"
        self._set_serving(False)
        self._renewing = asyncio.create_task(self._renew(outdated))

    async def _renew(self, outdated: Pair) -> None:
        while self._why:
            try:
                self._pair = await self._rebuild(outdated)
            except (CrossdraftError, VerifierLost) as cause:
                log.error("nothing is served: no pair with what verifiers serve now: %s", cause)
                self._why = str(cause)
                await asyncio.sleep(RETRY_S)
            else:
                self._why = ""
        self._met = {(self._pair.info.identity, self._pair.info.limits)}
        self.changes += 1
        self._set_serving(True)

    def close(self) -> None:
        """Nobody will ask any more."""
        if self._renewing is not None:
            self._renewing.cancel()
