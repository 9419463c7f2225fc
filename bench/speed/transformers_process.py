"""transformers' own generation, in this process: plain, or assisted by a draft model.

Reads one JSON object a line from standard input, answers one a line on standard output; started by
bench/speed/transformers_baseline.py. Knows transformers alone: same weight folders as ours,
float32, greedy, its own caches and its own linear layers. What it does is counted from outside, by
hooks on both models' forward and by a streamer, so that nothing of it is changed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging
from transformers.generation.streamers import BaseStreamer


class Passes:
    """Counts the forward passes of one `generate`; a hook on each model."""

    def __init__(self, target: torch.nn.Module, draft: torch.nn.Module) -> None:
        target.register_forward_pre_hook(self._before_target, with_kwargs=True)
        target.register_forward_hook(self._after_target)
        draft.register_forward_pre_hook(self._before_draft)
        self.start()

    def start(self) -> None:
        self.rows: list[int] = []  # that each target pass read
        self.steps: list[int] = []  # draft passes before each target pass
        self.first_done = 0.0
        self._steps = 0

    def _before_target(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.rows.append(int(kwargs["input_ids"].shape[1]))
        self.steps.append(self._steps)
        self._steps = 0

    def _after_target(self, module: Any, args: Any, output: Any) -> None:
        if len(self.rows) == 1:
            self.first_done = time.monotonic()

    def _before_draft(self, module: Any, args: Any) -> None:
        self._steps += 1


class Runs(BaseStreamer):
    """How many tokens were committed at a time; the first call brings the prompt."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.sizes.append(value.numel())

    def end(self) -> None:
        pass


class Baseline:
    """Both models, loaded as a user of transformers loads them."""

    def __init__(self, target: Path, draft: Path, draft_steps: int) -> None:
        self.target = _load(target)
        self.draft = _load(draft)
        self._tokenizers = {
            "tokenizer": AutoTokenizer.from_pretrained(target, local_files_only=True),
            "assistant_tokenizer": AutoTokenizer.from_pretrained(draft, local_files_only=True),
        }
        config = self.draft.generation_config  # where transformers reads these from
        config.num_assistant_tokens = draft_steps
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        self._passes = Passes(self.target, self.draft)

    @torch.inference_mode()
    def generate(
        self, ids: list[int], max_new_tokens: int, eos_ids: list[int], assisted: bool, bridged: bool
    ) -> dict[str, Any]:
        """bridged: the tokenizers differ, so that assisted generation needs both."""
        extra: dict[str, Any] = {"assistant_model": self.draft} if assisted else {}
        if assisted and bridged:
            extra |= self._tokenizers
        runs = Runs()
        self._passes.start()
        began = time.monotonic()
        output = self.target.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=eos_ids,
            pad_token_id=eos_ids[0] if eos_ids else None,
            streamer=runs,
            **extra,
        )
        done = time.monotonic()
        passes, token_ids = self._passes, output[0, len(ids) :].tolist()
        if not assisted:
            sizes = [1] * len(token_ids)
        else:
            sizes = runs.sizes[1:]
        if len(sizes) != len(passes.rows) or sum(sizes) != len(token_ids):
            raise RuntimeError("transformers' passes and tokens don't add up; its loop has changed")
        return {
            "token_ids": token_ids,
            "run_sizes": sizes,
            # The first pass also reads the prompt.
            "drafted": [passes.rows[0] - len(ids), *(rows - 1 for rows in passes.rows[1:])],
            "draft_steps": passes.steps,
            "time_to_first_token_s": passes.first_done - began,
            "total_s": done - began,
        }

    @torch.inference_mode()
    def logit_gap(self, ids: list[int], first: int, second: int) -> dict[str, Any]:
        """How much likelier the target finds `first` than `second` after `ids`."""
        row = self.target(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
        return {"logit_gap": float(row[first] - row[second])}


def _load(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    return model.eval()


def main() -> None:
    """target folder, draft folder, draft steps; then requests until standard input ends."""
    logging.disable_progress_bar()
    baseline = Baseline(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    calls: dict[str, Callable[..., dict[str, Any]]] = {
        "generate": baseline.generate,
        "logit_gap": baseline.logit_gap,
    }
    print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(calls[asked.pop("call")](**asked)), flush=True)


if __name__ == "__main__":
    main()
