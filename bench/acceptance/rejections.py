"""Why the first token of a proposal fell: one class for each rejection.

Knows bytes and both vocabularies. Does not know how proposals are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bench.acceptance.replay import Round
from common.types import BridgeMode
from drafter.bridge.bridge import Bridge

EXAMPLES = 8  # of each class, kept for the reader
BEFORE = 8  # tokens of context in an example


class Cause(Enum):
    """In the order in which a table shows them."""

    DISAGREES = "draft model disagrees"
    OUTSIDE = "token outside the shared set"
    SPLIT = "other split of the same text"
    MARKUP = "markup"
    NOTHING = "nothing proposed"  # no rejection, but a round without a chance


@dataclass(frozen=True)
class Example:
    """What came before, what was proposed, what the target wrote; each token in quotes."""

    prompt: str
    before: str
    proposed: tuple[str, ...]
    written: tuple[str, ...]


def classify(each: Round, bridge: Bridge, mode: BridgeMode) -> Cause | None:
    """None where the first token was accepted.

    Intersection can't propose a token outside the shared set, so there that comes before the split;
    text can, by several draft tokens, so there only a text that differs counts as outside.
    """
    if each.accepted:
        return None
    written = each.recording.output[each.base :]
    if not each.proposed:
        return Cause.NOTHING if len(written) > 1 else None  # one token left: no space for a draft
    target = bridge.target
    if target.is_special(written[0]):
        return Cause.MARKUP
    outside = bridge.to_draft(written[0]) is None
    if outside and mode is BridgeMode.INTERSECTION:
        return Cause.OUTSIDE
    if same_text(each, bridge):
        return Cause.SPLIT
    return Cause.OUTSIDE if outside else Cause.DISAGREES


def same_text(each: Round, bridge: Bridge) -> bool:
    """The proposed text starts with the target's first token, or the target wrote all of it."""
    target = bridge.target
    plain: list[int] = []
    for token_id in each.proposed:
        if target.is_special(token_id):
            break
        plain.append(token_id)
    proposed = target.bytes_of(plain)
    written = each.recording.output[each.base :]
    if not proposed:
        return False
    whole = target.bytes_of(token_id for token_id in written if not target.is_special(token_id))
    return proposed.startswith(target.token_bytes(written[0])) or whole.startswith(proposed)


def causes(rounds: Sequence[Round], bridge: Bridge, mode: BridgeMode) -> Counter[Cause]:
    """How often each."""
    found = (classify(each, bridge, mode) for each in rounds)
    return Counter(cause for cause in found if cause is not None)


def examples(
    rounds: Sequence[Round], bridge: Bridge, mode: BridgeMode
) -> dict[Cause, list[Example]]:
    """Some of each, spread over the run."""
    by_cause: dict[Cause, list[Round]] = {}
    for each in rounds:
        cause = classify(each, bridge, mode)
        if cause is not None:
            by_cause.setdefault(cause, []).append(each)
    spread = {cause: found[:: -(-len(found) // EXAMPLES)] for cause, found in by_cause.items()}
    return {cause: [_example(each, bridge) for each in found] for cause, found in spread.items()}


def _example(each: Round, bridge: Bridge) -> Example:
    output, base = each.recording.output, each.base

    def text_of(ids: Sequence[int]) -> list[str]:
        return [bridge.target.token_bytes(id_).decode("utf-8", "replace") for id_ in ids]

    return Example(
        prompt=each.recording.name,
        before="".join(text_of(output[max(0, base - BEFORE) : base])),
        proposed=tuple(text_of(each.proposed)),
        written=tuple(text_of(output[base : base + len(each.proposed) + 1])),
    )
