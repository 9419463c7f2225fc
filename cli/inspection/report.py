"""What two models' vocabularies have in common, before anything is served.

Knows directories, and the numbers that show whether a pair is worth trying. Does not know
weights (none is loaded), and how a report looks (cli/inspect_pair.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.inspection.sample_text import SAMPLE
from common.errors import UnsupportedTokenizer, WeightsError
from common.vocabulary.vocabulary import Role, TokenizerFiles, Vocabulary
from drafter.bridge.bridge import Bridge


@dataclass(frozen=True)
class SideReport:
    """One model's vocabulary."""

    width: int  # of the logits
    tokens: int  # ids that exist
    special: int
    roles: Mapping[Role, tuple[str, ...]]  # as "<eos> (1)"
    bos: str | None  # what is put before prompts
    missing_bytes: int
    has_chat_template: bool


@dataclass(frozen=True)
class MapReport:
    """What crosses from one to the other."""

    identity: bool
    shared: int  # draft ids with a mapped target token, specials by role included
    shared_plain: int  # of them, ids that are text
    of_draft: float  # as a share of each vocabulary
    of_target: float
    sample_tokens: int  # of a page of English and code, in the target's tokens
    of_sample: float  # how many of them have a mapped draft token
    sha256: str


@dataclass(frozen=True)
class PairReport:
    """None where a tokenizer is refused; `refusals` says why."""

    target: SideReport | None
    draft: SideReport | None
    map: MapReport | None
    bridge: str  # what `bridge = "auto"` comes to
    refusals: tuple[str, ...]


def inspect_pair(target_dir: Path, draft_dir: Path) -> PairReport:
    """Read both tokenizers; raises WeightsError only where a directory is no model's."""
    refusals: list[str] = []
    target = _load("target", target_dir, refusals)
    draft = _load("draft", draft_dir, refusals)
    for name, side in (("target", target), ("draft", draft)):
        if side is not None:
            refusals += _refusals(name, side)
    found = bridge = None
    if target is not None and draft is not None:
        bridge = Bridge(target, draft)
        found = _map(bridge)
    if bridge is None:
        choice = "none: the pair is refused at start"
    elif bridge.identity:
        choice = "identity: one tokenizer, every token is proposed as it is"
    else:
        choice = "auto: text and intersection are measured, the better one is kept"
    return PairReport(
        target=_side(target) if target is not None else None,
        draft=_side(draft) if draft is not None else None,
        map=found,
        bridge=choice,
        refusals=tuple(refusals),
    )


def _load(name: str, path: Path, refusals: list[str]) -> Vocabulary | None:
    config = _json(path / "config.json")
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    width = text.get("vocab_size")
    if not isinstance(width, int):
        raise WeightsError(f"{path} holds no model: config.json has no vocab_size")
    generation = _json(path / "generation_config.json")
    eos = generation.get("eos_token_id", text.get("eos_token_id"))
    eos_ids = eos if isinstance(eos, list) else [eos] if isinstance(eos, int) else []
    try:
        side = Vocabulary(TokenizerFiles.from_directory(path), width, eos_ids)
        side.encode_prompt("")  # transformers may refuse what we could read
        return side
    except UnsupportedTokenizer as refused:
        refusals.append(f"{name}: {refused}")
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as cause:
        raise WeightsError(f"{path} isn't JSON: {cause}") from cause
    return parsed if isinstance(parsed, dict) else {}


def _refusals(name: str, side: Vocabulary) -> list[str]:
    """What requests or rounds would be refused, and why."""
    found = []
    if not side.has_chat_template:
        found.append(
            "target: no chat template, so that chat requests are refused"
            if name == "target"
            else "draft: no chat template, so that it reads the target's rendering of a chat"
        )
    if name == "draft" and side.missing_bytes:
        found.append(
            f"draft: no token has {len(side.missing_bytes)} of the 256 bytes; where the text "
            "needs one, nothing is drafted (k = 0)"
        )
    if not side.eos_ids:
        found.append(f"{name}: no end-of-text or end-of-turn token is known")
    return found


def _side(side: Vocabulary) -> SideReport:
    def text_of(token_id: int) -> str:
        return f"{side.token_bytes(token_id).decode('utf-8', 'replace')} ({token_id})"

    bos = side.prompt_bos
    return SideReport(
        width=side.width,
        tokens=int(side.real.sum()),
        special=len(side.special_ids),
        roles={role: tuple(text_of(id_) for id_ in ids) for role, ids in side.roles.items()},
        bos=None if bos is None else text_of(bos),
        missing_bytes=len(side.missing_bytes),
        has_chat_template=side.has_chat_template,
    )


def _map(bridge: Bridge) -> MapReport:
    target, draft = bridge.target, bridge.draft
    shared: list[int] = bridge.shared.nonzero().flatten().tolist()
    mapped_ids = {bridge.mapped_id(draft_id) for draft_id in shared}
    sample = target.encode_bytes(SAMPLE.encode()) or target.encode_prompt(SAMPLE)
    crossing = sum(bridge.to_draft(token_id) is not None for token_id in sample)
    return MapReport(
        identity=bridge.identity,
        shared=len(shared),
        shared_plain=sum(not draft.is_special(draft_id) for draft_id in shared),
        of_draft=len(shared) / int(draft.real.sum()),
        of_target=len(mapped_ids) / int(target.real.sum()),
        sample_tokens=len(sample),
        of_sample=crossing / len(sample),
        sha256=bridge.sha256,
    )
