"""What a drafter loads before it serves: the draft model, the target's vocabulary, the bridge.

Knows in which order, and that the event loop stays free meanwhile. Does not know requests.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import grpc
from opentelemetry.trace import Tracer

from common.device.choice import choose_device
from common.engine.memory import profile_kv_memory
from common.errors import ConfigError
from common.kv.pages import PagePool
from common.model.language_model import LanguageModel
from common.model.loading import load_model
from common.telemetry.tracing import NO_TRACER
from common.types import IDENTITY_PARTS, ModelInfo
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from drafter.bridge.bridge import Bridge
from drafter.bridge.proposer import AutoChooser
from drafter.config import DrafterConfig
from drafter.engine.engine import DraftEngine
from drafter.engine.sampler import HostSampler, Sampler
from drafter.session import Pair
from drafter.verifier_client.client import VerifierClient

log = logging.getLogger(__name__)

# What a draft step and a proposed row cost, in target decode steps (measured for the demo pair).
STEP_COST, ROW_COST = 0.12, 0.03


async def build(
    config: DrafterConfig, channel: grpc.aio.Channel, tracer: Tracer = NO_TRACER
) -> Pair:
    """Load the draft model, wait for the verifier, bridge the two; the engine isn't started yet."""
    verifier = VerifierClient(
        channel,
        config.verifier_timeout_s,
        config.round_timeout_s,
        config.open_timeout_s,
        tracer,
        parts_of(config.resume_on),
    )
    model, draft = await asyncio.to_thread(_load_draft, config)
    info, target_files = await verifier.describe()
    bridge = await asyncio.to_thread(_make_bridge, info, target_files, draft)
    # A draft model may need more tokens for the same text; over its context a session has k = 0.
    context = min(model.max_context_length, 2 * info.max_context_length)
    q_entries = min(config.q_entries, info.max_q_entries)
    sampler_, pool = await asyncio.to_thread(_make_room, config, model, bridge, context, q_entries)
    most_rows, ahead = config.max_batch_tokens, runs_ahead(config, model)
    engine = DraftEngine(model, pool, bridge, most_rows, context, config.threads, sampler_, ahead)
    _log_pair(config, info, bridge)
    chooser = AutoChooser(STEP_COST, ROW_COST)
    return Pair(
        bridge,
        engine,
        verifier,
        info,
        chooser,
        config.lookup,
        q_entries,
        str(model.device),
        str(model.dtype).removeprefix("torch."),
        config.draft_timeout_s,
    )


async def rebuild(config: DrafterConfig, pair: Pair) -> Pair:
    """A pair with what verifiers serve now, on the same draft model and engine.

    Streams that run keep their own. Raises VerifierUnavailable or UnsupportedTokenizer.
    """
    info, files = await pair.verifier.describe()
    bridge = await asyncio.to_thread(_make_bridge, info, files, pair.bridge.draft)
    q_entries = min(config.q_entries, info.max_q_entries)
    sampler_ = await asyncio.to_thread(
        _ready_sampler, pair.engine.model, bridge, config.max_sessions, q_entries
    )
    pair.engine.use(bridge, sampler_)
    _log_pair(config, info, bridge)
    chooser = AutoChooser(STEP_COST, ROW_COST)
    return replace(pair, bridge=bridge, info=info, chooser=chooser, q_entries=q_entries)


def parts_of(resume_on: str) -> frozenset[str]:
    """The parts that the setting names. Raises ConfigError."""
    parts = frozenset(part.strip() for part in resume_on.split(",") if part.strip())
    if parts - set(IDENTITY_PARTS):
        raise ConfigError(
            f"resume_on is {resume_on!r}; it must be some of {', '.join(IDENTITY_PARTS)}, with "
            "commas"
        )
    return parts


def _log_pair(config: DrafterConfig, info: ModelInfo, bridge: Bridge) -> None:
    log.info(
        "%s drafts for %s over %s: %d shared tokens, map %s",
        config.model,
        info.model,
        "the same tokenizer" if bridge.identity else f"bridge {config.bridge}",
        bridge.shared_count,
        bridge.sha256[:16],
    )


def _load_draft(config: DrafterConfig) -> tuple[LanguageModel, Vocabulary]:
    device = choose_device(config.device, config.dtype)
    log.info("%s on %s", config.model, device)
    folder = resolve(config.model)
    files = TokenizerFiles.from_directory(folder)
    model = load_model(folder, config.linear, config.threads, device.place, device.dtype)
    return model, Vocabulary(files, model.vocab_size, model.eos_ids)


def _make_room(
    config: DrafterConfig, model: LanguageModel, bridge: Bridge, context: int, q_entries: int
) -> tuple[Sampler, PagePool]:
    sampler_ = _ready_sampler(model, bridge, config.max_sessions, q_entries)
    pool = profile_kv_memory(
        model, config, context=context, most_rows=config.max_batch_tokens, shrink=True
    )
    return sampler_, pool


def _ready_sampler(
    model: LanguageModel, bridge: Bridge, most_sessions: int, q_entries: int
) -> Sampler:
    model.runtime.enter()  # a thread of its own launches here
    sampler_ = make_sampler(model, bridge, most_sessions, q_entries)
    sampler_.warm_up()
    return sampler_


def runs_ahead(config: DrafterConfig, model: LanguageModel) -> bool:
    """Whether sessions draft ahead of their verdicts."""
    return config.run_ahead == "on" or (config.run_ahead == "auto" and model.kernels)


def make_sampler(
    model: LanguageModel, bridge: Bridge, most_sessions: int, q_entries: int
) -> Sampler:
    """Who chooses draft tokens where the model runs, for up to `most_sessions` in one step."""
    if not model.kernels:
        return HostSampler(bridge)
    from drafter.engine.device_sampler import DeviceSampler  # Triton comes in with it

    return DeviceSampler(bridge, model.device, model.runtime, model.dtype, most_sessions, q_entries)


def _make_bridge(info: ModelInfo, target_files: TokenizerFiles, draft: Vocabulary) -> Bridge:
    target = Vocabulary(target_files, info.vocab_size, info.eos_ids)
    target.encode_prompt("")  # slow when first used: pay at start, not in a request
    return Bridge(target, draft)
