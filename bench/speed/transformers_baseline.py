"""The baseline as a child process: its memory is its own, and freed when it ends.

Knows pipes and lines of JSON. Does not know transformers (bench/speed/transformers_process.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

from bench.speed.measures import Run
from bench.support.target_prompts import TargetPrompt
from common.device import native

LINE_LIMIT = 1 << 20


class TransformersBaseline:
    """An async context manager; waits until both models are loaded."""

    def __init__(
        self,
        target: Path,
        draft: Path,
        draft_steps: int,
        eos_ids: frozenset[int],
        bridged: bool,
        log: Path,
    ) -> None:
        self._command = [sys.executable, "-m", "bench.speed.transformers_process"]
        self._command += [str(target), str(draft), str(draft_steps)]
        self._eos_ids = sorted(eos_ids)
        self._steps = draft_steps
        self._bridged = bridged
        self._log = log
        self._stderr: IO[bytes] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> TransformersBaseline:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._stderr = self._log.open("wb")
        # OpenMP as it comes: a user of transformers would set neither of these.
        environment = {k: v for k, v in os.environ.items() if k not in native.SETTINGS}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        try:
            await self._answer()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def run(self, system: str, target_prompt: TargetPrompt, max_new_tokens: int) -> Run:
        """system: assisted or plain."""
        assisted = system == "assisted"
        answer = await self._ask(
            call="generate",
            ids=target_prompt.ids,
            max_new_tokens=max_new_tokens,
            eos_ids=self._eos_ids,
            assisted=assisted,
            bridged=self._bridged,
        )
        return run_of(system, self._steps if assisted else 0, target_prompt.name, answer)

    async def logit_gap(self, ids: tuple[int, ...], first: int, second: int) -> float:
        """By transformers' own forward pass; 0 is a tie."""
        answer = await self._ask(call="logit_gap", ids=ids, first=first, second=second)
        return float(answer["logit_gap"])

    async def _ask(self, **target_prompt: Any) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(target_prompt).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace").splitlines()[-10:]
            raise click.ClickException("transformers' process ended:\n" + "\n".join(tail))
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _end(self) -> None:
        assert self._process is not None and self._stderr is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._stderr.close()


def run_of(system: str, draft_steps: int, prompt: str, answer: dict[str, Any]) -> Run:
    """The same counts as of our own runs: passes after the first are rounds."""
    sizes, drafted = answer["run_sizes"], answer["drafted"]
    longest = max(drafted, default=0)
    rounds = list(zip(sizes[1:], drafted[1:], strict=True))
    return Run(
        system=system,
        draft_steps=draft_steps,
        prompt=prompt,
        token_ids=tuple(answer["token_ids"]),
        rounds=len(rounds),
        first_run=sizes[0],
        drafted_by_position=tuple(
            sum(count > position for _, count in rounds) for position in range(longest)
        ),
        accepted_by_position=tuple(
            sum(size - 1 > position for size, _ in rounds) for position in range(longest)
        ),
        time_to_first_token_s=answer["time_to_first_token_s"],
        total_s=answer["total_s"],
        steps_by_round=tuple(answer["draft_steps"]),
    )
