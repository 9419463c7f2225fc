"""What the target alone says to every prompt, recorded once and kept as JSON.

Knows the verifier's engine, in this process, at k = 0, all prompts at once. A kept recording is
used again if target, weights, prompts and length are the same. Does not know drafts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.acceptance.replay import Recording
from bench.support.progress import ReportProgress
from bench.support.target_prompts import TargetPrompt, target_prompts
from common.types import OpenSession, Proposal
from common.vocabulary.vocabulary import TokenizerFiles
from common.weights.resolve import MARKER
from verifier.config import VerifierConfig
from verifier.engine import VerifierEngine

CONTEXT = 1024
BATCH_TOKENS = 256


@dataclass(frozen=True)
class Recordings:
    """Outputs, and what a verifier would have reported of the target."""

    vocab_size: int
    eos_ids: frozenset[int]
    outputs: tuple[Recording, ...]


def record(
    target: str,
    folder: Path,
    prompts: int,
    max_new_tokens: int,
    kept: Path,
    report_progress: ReportProgress,
) -> Recordings:
    """From `kept` if it fits, else from the model, and then kept."""
    files = TokenizerFiles.from_directory(folder)
    asked = target_prompts(files, prompts)
    key = _key(target, folder, asked, max_new_tokens)
    found = _read(kept, key)
    if found is None:
        found = asyncio.run(_record(target, asked, max_new_tokens, report_progress))
        _write(kept, key, found)
    return found


async def _record(
    target: str, asked: Sequence[TargetPrompt], max_new_tokens: int, report_progress: ReportProgress
) -> Recordings:
    from verifier.startup import build

    config = VerifierConfig(
        model=target,
        max_sessions=len(asked),
        max_context_length=CONTEXT,
        max_batch_tokens=BATCH_TOKENS,
    )
    engine, info, _ = await asyncio.to_thread(build, config)
    engine.start()
    total, done = len(asked) * max_new_tokens, 0

    def token() -> None:
        nonlocal done
        done += 1
        if done % len(asked) == 0:
            report_progress(f"recording {target}", done, total)

    try:
        outputs = await asyncio.gather(
            *(_speak(engine, target_prompt, max_new_tokens, info, token) for target_prompt in asked)
        )
    finally:
        engine.stop()
    return Recordings(info.vocab_size, info.eos_ids, tuple(outputs))


async def _speak(
    engine: VerifierEngine, target_prompt: TargetPrompt, max_new_tokens: int, info: Any, token: Any
) -> Recording:
    spec = OpenSession(target_prompt.ids, max_new_tokens, info.tokenizer_sha256)
    session = engine.open(spec)
    try:
        output = []
        while True:
            verdict = await session.mailbox.take()
            assert verdict.next_token is not None  # nothing is drafted
            output.append(verdict.next_token)
            token()
            if verdict.finish_reason is not None:
                break
            engine.propose(session, Proposal(len(output), verdict.committed_length, ()))
    finally:
        engine.close(session)
    return Recording(target_prompt.name, target_prompt.ids, tuple(output), target_prompt.messages)


def _key(
    target: str, folder: Path, asked: Sequence[TargetPrompt], max_new_tokens: int
) -> dict[str, Any]:
    marker = folder / MARKER
    ids = json.dumps([(target_prompt.name, target_prompt.ids) for target_prompt in asked])
    return {
        "target": target,
        "weights": json.loads(marker.read_text()) if marker.is_file() else str(folder),
        "prompts": hashlib.sha256(ids.encode()).hexdigest(),
        "max_new_tokens": max_new_tokens,
    }


def _read(kept: Path, key: dict[str, Any]) -> Recordings | None:
    try:
        parsed = json.loads(kept.read_text())
    except (OSError, ValueError):
        return None
    if parsed.get("key") != key:
        return None
    outputs = tuple(
        Recording(
            each["name"],
            tuple(each["prompt"]),
            tuple(each["output"]),
            None if each["messages"] is None else tuple((r, c) for r, c in each["messages"]),
        )
        for each in parsed["outputs"]
    )
    return Recordings(parsed["vocab_size"], frozenset(parsed["eos_ids"]), outputs)


def _write(kept: Path, key: dict[str, Any], found: Recordings) -> None:
    content = {
        "key": key,
        "vocab_size": found.vocab_size,
        "eos_ids": sorted(found.eos_ids),
        "outputs": [vars(each) for each in found.outputs],
    }
    kept.write_text(json.dumps(content, indent=1) + "\n")
