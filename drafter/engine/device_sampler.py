"""Draft tokens on a GPU: a step's inputs sent in one copy, chosen by kernels, fetched in one.

Knows which sessions share a launch (drafter/kernels/propose.py takes one mask and one set of noise
ids) and how answers lie in memory. Does not know how kernels choose. A distribution that goes
along is over draft ids, as on the CPU: ids mapped to one target token are sampled apart and
add up in it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.device.runtime import Runtime
from common.device.staging import HostBuffer, Staging
from common.sampling.rng import Purpose
from common.types import SparseDistribution
from drafter.bridge.bridge import NO_TARGET_ID, Bridge
from drafter.engine.device_healing import heal, healing_inputs
from drafter.engine.device_inputs import Entries, entries_of, process, steps_of
from drafter.engine.sampler import SampledToken, SamplerInput
from drafter.kernels.draft_rows import SharedIds, Steps, Workspace
from drafter.kernels.propose import propose_rows

log = logging.getLogger(__name__)

MOST_Q = 256  # ids of a distribution that goes along; kernels keep them in registers
COUPLED_SLOTS = 256  # of the draft's likeliest ids that noise is made for
_ALIGNED = 16  # integers: where results begin


@dataclass(frozen=True)
class _Kind:
    """What a launch has one of."""

    mask: int  # which of the bridge's masks
    noise: int  # which of its noise ids; 0: draft ids
    slots: int
    processes_logits: bool  # whether its logits change first


@dataclass(frozen=True)
class _Launch:
    """Some sessions' tokens, and where they are left: int32, but for float32 bits."""

    members: list[int]
    tokens: slice  # [members, 2]: draft id, noise id
    tops: slice  # float32 [members]: not finite where nothing may come or logits aren't
    ids: slice  # [members, slots] of the distribution
    probs: slice  # float32 [members, slots]


class DeviceSampler:
    """One engine's (see drafter/engine/sampler.py); all memory of its own is made here."""

    def __init__(
        self,
        bridge: Bridge,
        device: torch.device,
        runtime: Runtime,
        dtype: torch.dtype,  # of logits
        most_sessions: int,
        q_entries: int,
    ) -> None:
        """q_entries: of a distribution that goes along; cut to a power of two, MOST_Q at most."""
        vocab = bridge.draft.width
        self._bridge, self._vocab = bridge, vocab
        self._q_slots = 1 << (min(q_entries, MOST_Q).bit_length() - 1)
        self._masks = (bridge.draft_real, bridge.shared, bridge.draft_spaced)
        self._noise = (bridge.draft_ids, bridge.noise_ids, bridge.noise_ids_after_space)
        maps = [None, *(_as_targets(noise).to(device) for noise in self._noise[1:])]
        self._shared = [
            [SharedIds.of(ids, mask.to(device), vocab) for ids in maps] for mask in self._masks
        ]
        self._work = {
            slots: Workspace.empty(most_sessions, vocab, device, slots)
            for slots in {self._q_slots, COUPLED_SLOTS}
        }
        self._picked = torch.empty((most_sessions, vocab), dtype=dtype, device=device)
        self._wide = torch.empty((most_sessions, vocab), device=device)
        most = most_sessions * (5 + 2 * max(MOST_Q, COUPLED_SLOTS) + 5 * _ALIGNED)
        self._results = torch.zeros(most, dtype=torch.int32, device=device)
        self._end = 0  # of what this step has taken of it
        self._staging = Staging(device, runtime)
        self._host_buffer = HostBuffer(most, torch.int32, runtime)
        self._begun = runtime.event()
        self.enter = runtime.enter
        self.lag_s = 0.0

    def choose(self, logits: Tensor, inputs: Sequence[SamplerInput]) -> list[SampledToken]:
        """logits: [sum of rows, draft vocab], in the order of `inputs`."""
        asked_at = time.monotonic()
        self._begun.record()
        if not inputs:
            self._begun.wait()
            self.lag_s = time.monotonic() - asked_at
            return []
        chosen = self._choose(logits, inputs)
        choose_s = self._host_buffer.landed.seconds_since(self._begun)
        self.lag_s = max(0.0, time.monotonic() - asked_at - choose_s)
        return chosen

    def warm_up(self) -> None:
        """Run every kernel that a step may run, so that none is compiled while sessions wait."""
        began = time.monotonic()
        for processes_logits in (False, True):
            for mask, noise in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 2)):
                self._end = 0
                slots = COUPLED_SLOTS if noise else self._q_slots
                scores = (self._wide if processes_logits else self._picked)[:1].zero_()
                (steps,) = self._staging.send([steps_of([None], [0], self._vocab)])
                self._propose(scores, [0], _Kind(mask, noise, slots, processes_logits), steps)
                self._host_buffer.fetch(self._results[: self._end])
        log.info("proposal kernels are ready after %.1f s", time.monotonic() - began)

    def _choose(self, logits: Tensor, inputs: Sequence[SamplerInput]) -> list[SampledToken]:
        last = [end - 1 for end in torch.tensor([each.rows for each in inputs]).cumsum(0).tolist()]
        groups: dict[_Kind, list[int]] = {}
        for index, each in enumerate(inputs):
            groups.setdefault(self._kind(each), []).append(index)
        healing, to_heal = healing_inputs(self._bridge, inputs, last)
        parts: list[Tensor | Steps | Entries | None] = []
        for kind, members in groups.items():
            some = [inputs[index] for index in members]
            sampling, taken = [each.sampling for each in some], [len(each.drafted) for each in some]
            parts.append(torch.tensor([last[index] for index in members]))
            parts.append(steps_of(sampling, taken, self._vocab))
            parts.append(entries_of(some) if kind.processes_logits else None)
        *sent, to_heal = self._staging.send([*parts, to_heal])
        self._end = 0
        launches = []
        for place, (kind, members) in enumerate(groups.items()):
            rows, steps, entries = sent[3 * place : 3 * place + 3]
            scores = self._scores(logits, rows, entries, [last[index] for index in members])
            launches.append(self._propose(scores, members, kind, steps))
        healed = self._take(2, len(healing))
        if to_heal is not None:
            longer, likelier = heal(logits, to_heal)
            self._results[healed].view(2, -1).copy_(torch.stack([longer, likelier.long()]))
        answers = self._host_buffer.fetch(self._results[: self._end]).numpy()
        chosen = self._read(answers, launches, inputs)
        for index, longer, likelier in zip(healing, *answers[healed].reshape(2, -1), strict=True):
            if likelier:
                chosen[index] = replace(chosen[index], token=int(longer), healed=True)
        return chosen

    def _kind(self, inputs: SamplerInput) -> _Kind:
        mask = next(place for place, one in enumerate(self._masks) if one is inputs.allowed)
        processes_logits, sampling = inputs.processors is not None, inputs.sampling
        if sampling is None:
            return _Kind(mask, 0, self._q_slots, processes_logits)
        ids = sampling.noise_ids if inputs.drafted else sampling.first_noise_ids
        noise = next(place for place, one in enumerate(self._noise) if one is ids)
        return _Kind(mask, noise, COUPLED_SLOTS if noise else self._q_slots, processes_logits)

    def _scores(
        self, logits: Tensor, rows: Tensor, entries: Entries | None, places: Sequence[int]
    ) -> Tensor:
        """Those logit rows, processed; the logits themselves where that is what they are."""
        if entries is None and len(places) == len(logits):
            return logits  # every row, and so in order
        picked = torch.index_select(logits, 0, rows, out=self._picked[: len(rows)])
        return picked if entries is None else process(picked, entries, self._wide[: len(rows)])

    def _propose(self, scores: Tensor, members: list[int], kind: _Kind, steps: Steps) -> _Launch:
        count, slots = len(members), kind.slots
        made = _Launch(
            members, self._take(count, 2), self._take(count), self._take(count, slots),
            self._take(count, slots),
        )  # fmt: skip
        work = replace(
            self._work[slots],
            tokens=self._results[made.tokens].view(count, 2),
            q_ids=self._results[made.ids].view(count, slots),
            q_probs=self._results[made.probs].view(torch.float32).view(count, slots),
        )
        propose_rows(scores, self._shared[kind.mask][kind.noise], steps, work)
        tops = self._results[made.tops].view(torch.float32)
        torch.amax(work.scan.tops[:count], dim=1, out=tops)
        return made

    def _take(self, *shape: int) -> slice:
        """The next free slice of the results."""
        free = slice(self._end, self._end + math.prod(shape))
        self._end = -(-free.stop // _ALIGNED) * _ALIGNED
        return free

    def _read(
        self,
        answers: NDArray[np.int32],
        launches: Sequence[_Launch],
        inputs: Sequence[SamplerInput],
    ) -> list[SampledToken]:
        chosen = [SampledToken(None)] * len(inputs)
        for each in launches:
            count = len(each.members)
            tokens = answers[each.tokens].reshape(count, 2)[:, 0].tolist()
            ids = answers[each.ids].reshape(count, -1)
            probs = answers[each.probs].view(np.float32).reshape(count, -1)
            there = np.isfinite(answers[each.tops].view(np.float32))
            for place, index in enumerate(each.members):
                sampling, distribution = inputs[index].sampling, None
                if not there[place]:
                    continue
                if sampling is not None and sampling.purpose is Purpose.PROPOSE:
                    used = probs[place] > 0
                    distribution = SparseDistribution(
                        tuple(ids[place][used].tolist()), tuple(probs[place][used].tolist())
                    )
                chosen[index] = SampledToken(tokens[place], distribution)
        return chosen


def _as_targets(noise: Tensor) -> Tensor:
    """Noise ids as int32: those that no target id has come nearer, and still behind all of them."""
    return torch.where(noise < NO_TARGET_ID, noise, noise - NO_TARGET_ID // 2).to(torch.int32)
