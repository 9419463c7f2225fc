"""Streams to a verifier that are cut off, without a verifier that is."""

from __future__ import annotations

import pytest

from common.types import OpenSession, Proposal, Verdict
from drafter.verifier_client.lost import VerifierLost
from drafter.verifier_client.session import VerifierSession


def lose_once(monkeypatch: pytest.MonkeyPatch, round_: int = 3) -> None:
    """The first session that comes to this round finds its verifier gone."""
    exchange, lost = VerifierSession._exchange, False

    async def losing(session: VerifierSession, content: OpenSession | Proposal) -> Verdict:
        nonlocal lost
        if isinstance(content, Proposal) and content.round == round_ and not lost:
            lost = True
            raise VerifierLost("UNAVAILABLE: cut off by the test")
        return await exchange(session, content)

    monkeypatch.setattr(VerifierSession, "_exchange", losing)
