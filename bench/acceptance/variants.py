"""What the ablations compare: a bridge mode, what the draft model reads, and by which map.

Knows which combinations are of interest. Does not know how contexts and proposals are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from common.types import BridgeMode

TEXT, INTERSECTION, AUTO = BridgeMode.TEXT, BridgeMode.INTERSECTION, BridgeMode.AUTO
Encoding = Literal["auto", "canonical", "token"]
READS = {
    "auto": "each mode its own encoding",
    "canonical": "canonical",
    "token": "token by token",
}


@dataclass(frozen=True)
class Variant:
    """encoding None: the UNK ablation. own: the draft model's own chat template.

    by_string: tokens are matched by their vocabulary strings, not by their bytes
    (bench/acceptance/string_bridge.py).
    """

    mode: BridgeMode
    encoding: Encoding | None
    own: bool
    lookup: bool = False
    by_string: bool = False

    @property
    def reads(self) -> str:
        if self.encoding is None:
            matched = "strings" if self.by_string else "bytes"
            return f"ids mapped by {matched}, UNK for the rest"
        return f"{'own template' if self.own else 'target text'}, {READS[self.encoding]}"

    @property
    def proposes(self) -> str:
        return f"{self.mode.value}{' and lookup' if self.lookup else ''}"


UNK = Variant(INTERSECTION, None, False)
PUBLIC = replace(UNK, by_string=True)  # what public servers do


def variants(has_own_template: bool) -> list[Variant]:
    """What the drafter does by default, with lookup and without; then one thing changed at a time.

    The text mode reads canonical text by default, intersection token by token. Without an own
    rendering of the prompts there is one template only.
    """
    own = has_own_template
    defaults = (Variant(TEXT, "canonical", own), Variant(INTERSECTION, "token", own))
    found = [*defaults, Variant(AUTO, "auto", own)]
    found += [replace(each, lookup=True) for each in found]
    encodings: tuple[Encoding, ...] = ("canonical", "token")
    templates = (True, False) if own else (False,)
    modes = (TEXT, INTERSECTION, AUTO)
    found += [Variant(m, encoding, t) for t in templates for encoding in encodings for m in modes]
    return [*dict.fromkeys(found), UNK, PUBLIC]
