"""Which sequences give way, for tests."""

from __future__ import annotations

import pytest

from common.engine.sequence import Sequence


def count_preemptions(monkeypatch: pytest.MonkeyPatch) -> list[Sequence]:
    """Every sequence that gives way from now on."""
    preempted: list[Sequence] = []
    preempt = Sequence.preempt

    def counted(sequence: Sequence, favoured: Sequence) -> None:
        preempted.append(sequence)
        preempt(sequence, favoured)

    monkeypatch.setattr(Sequence, "preempt", counted)
    return preempted
