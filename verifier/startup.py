"""What a verifier loads before it serves: the target, its acceptance sampler, pages, limits.

Knows in which order. Does not know requests.
"""

from __future__ import annotations

import torch

from common.engine.memory import profile_kv_memory
from common.model.language_model import LanguageModel
from common.types import ModelInfo, OpenSession
from common.version import VERSION
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from common.wire.checks import FEATURES
from verifier.acceptance.sampler import AcceptanceSampler, HostAcceptanceSampler
from verifier.config import VerifierConfig
from verifier.engine import Limits, VerifierEngine
from verifier.identity import identity_of
from verifier.ranks import load_target, watch


def build(config: VerifierConfig) -> tuple[VerifierEngine, ModelInfo, TokenizerFiles]:
    """Load everything a verifier needs; the engine isn't started yet. Blocks for seconds."""
    folder = resolve(config.model)
    files = TokenizerFiles.from_directory(folder)
    model, device, ranks = load_target(config, folder)
    vocabulary = Vocabulary(files, model.vocab_size, model.eos_ids)
    vocabulary.encode_prompt("")  # drafters will, with these files: they are refused here and now
    real_ids = torch.from_numpy(vocabulary.real)
    context = min(config.max_context_length, model.max_context_length)
    batch_rows = device.batch_rows(config.max_batch_tokens, config.max_draft_tokens + 1)
    most_rows = min(batch_rows, config.max_sessions * (config.max_draft_tokens + 1))
    acceptance = make_acceptance_sampler(model, most_rows, config.max_sessions, real_ids)
    acceptance.warm_up()
    pool = profile_kv_memory(model, config, context=context, most_rows=batch_rows)
    limits = Limits(
        config.max_sessions,
        config.max_draft_tokens,
        context,
        batch_rows,
        config.max_q_entries,
    )
    engine = VerifierEngine(
        model,
        pool,
        limits,
        vocabulary.eos_ids,
        real_ids,
        config.threads,
        acceptance,
    )
    watch(ranks, engine)
    info = ModelInfo(
        model=config.model,
        tokenizer_sha256=files.sha256,
        vocab_size=model.vocab_size,
        eos_ids=vocabulary.eos_ids,
        max_context_length=context,
        max_draft_tokens=config.max_draft_tokens,
        max_q_entries=config.max_q_entries,
        max_sessions=config.max_sessions,
        max_message_bytes=config.max_message_bytes,
        row_invariant=model.row_invariant,
        version=VERSION,
        device=str(device.place),
        dtype=device.dtype_name,
        features=FEATURES,
        identity=identity_of(folder, files, model, device, ranks.place.world if ranks else 1),
    )
    return engine, info, files


def make_acceptance_sampler(
    model: LanguageModel, most_rows: int, most_sessions: int, real_ids: torch.Tensor
) -> AcceptanceSampler:
    """The acceptance sampler of the model's device."""
    if not model.kernels:
        return HostAcceptanceSampler(real_ids)
    from verifier.acceptance.device_sampler import (
        DeviceAcceptanceSampler,  # Triton comes in with it
    )

    return DeviceAcceptanceSampler(
        model.device,
        model.runtime,
        model.dtype,
        model.vocab_size,
        most_rows,
        most_sessions,
        real_ids,
    )


async def first_pass(engine: VerifierEngine, info: ModelInfo) -> None:
    """One token in, one out. Raises ModelFailed."""
    session = engine.open(OpenSession((0,), 1, info.tokenizer_sha256))
    try:
        await session.mailbox.take()
    finally:
        engine.close(session)
