"""Selects one session's verifier where a name has several: which to try, which to avoid.

gRPC sends each stream to the next address and doesn't say which it was; verifiers identify
themselves (common/rpc/verifier_id.py). Knows who answers, who took too long, who was full. Does not
know what a session holds and how long to search (drafter/verifier_client/client.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Set
from typing import Any

import grpc

from common.rpc import verifier_id
from drafter.verifier_client.lost import VerifierLost, VerifierTimeout

ANSWER_S = 5.0  # for a verifier to say that it has the stream, before it reads the prompt
PASSES = 3  # streams in a row that may get a slow verifier; then there is no other
REFUSALS = 3  # of one full verifier, since other sessions take turns at the addresses as well
MOST_REFUSALS = 16  # of all together
SOLE_AFTER = 8  # streams in a row at one verifier, until it is taken for the only one
FULL_S = 1.0  # that a refusal is news


class VerifierHistory:
    """What all sessions of a drafter have seen of verifiers."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=SOLE_AFTER)  # verifiers of the last streams
        self._full_at = -math.inf  # when one was full

    @property
    def identified(self) -> bool:
        """Whether verifiers here send ids."""
        return bool(self._last)

    @property
    def full(self) -> bool:
        """Whether a session was just refused for lack of capacity: the next may well be, too."""
        return time.monotonic() - self._full_at < FULL_S

    def answered(self, verifier: str) -> None:
        if verifier:
            self._last.append(verifier)

    def refused(self) -> None:
        self._full_at = time.monotonic()

    def only(self, verifier: str) -> bool:
        """Whether there seems to be no other: streams go to all of them in turn."""
        return len(self._last) == SOLE_AFTER and set(self._last) == {verifier}


class VerifierSelection:
    """From a session's beginning, or a verifier's loss, until one gives its first verdict."""

    def __init__(self, slow: Set[str], history: VerifierHistory) -> None:
        """slow: ids of verifiers that took too long over this session's rounds."""
        self._slow = slow
        self._history = history
        self._passes = PASSES
        self._refusals: Counter[str] = Counter()

    async def answer(self, call: grpc.aio.StreamStreamCall[Any, Any], limit_s: float | None) -> str:
        """The id of the verifier that has the stream; "" if it sends none, or the call is over.

        Raises VerifierTimeout if none answers in time, and VerifierLost if another one is
        preferred.
        """
        try:
            async with asyncio.timeout(limit_s):
                answered = verifier_id.received(await call.initial_metadata())
        except TimeoutError as cause:
            raise VerifierTimeout(f"no answer within {limit_s:g} s") from cause
        self._history.answered(answered)
        if answered in self._slow and self._passes:
            self._passes -= 1
            raise VerifierLost("it took too long before; another may do better")
        return answered

    def may_find_another(self, refusing: str, full: bool) -> bool:
        """Whether another verifier is to be tried at once, now that this one has refused.

        full: for lack of capacity; otherwise since it serves something else, or takes less.
        """
        if full:
            self._history.refused()
        self._refusals[refusing] += 1
        if self._history.only(refusing):
            return False
        return self._refusals[refusing] < REFUSALS and self._refusals.total() < MOST_REFUSALS
