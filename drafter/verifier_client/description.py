"""What a verifier serves, and its tokenizer's files, in two questions that must belong together.

Knows the two methods. Does not know when to ask again (drafter/verifier_client/client.py).
"""

from __future__ import annotations

import asyncio

from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.types import ModelInfo
from common.vocabulary.vocabulary import TokenizerFiles
from common.wire import verify as wire_verify
from drafter.verifier_client.lost import VerifierLost

LIMIT_S = 30.0  # for both answers; a tokenizer has up to some 30 MiB


async def described(
    stub: verifier_pb2_grpc.VerifierServiceStub,
) -> tuple[ModelInfo, TokenizerFiles]:
    """Raises VerifierLost if they take too long, or don't match: the verifier changed between."""
    try:
        async with asyncio.timeout(LIMIT_S):
            return await _described(stub)
    except TimeoutError as cause:
        raise VerifierLost(f"it hasn't said what it serves within {LIMIT_S:g} s") from cause


async def _described(
    stub: verifier_pb2_grpc.VerifierServiceStub,
) -> tuple[ModelInfo, TokenizerFiles]:
    info = wire_verify.model_from_pb(await stub.GetModel(pb.GetModelRequest()))
    received: dict[str, bytearray] = {}
    expected: dict[str, int] = {}
    async for part in stub.GetTokenizer(pb.GetTokenizerRequest()):
        received.setdefault(part.filename, bytearray()).extend(part.chunk)
        expected[part.filename] = expected.get(part.filename, 0) + part.file_bytes
    for name, data in received.items():
        if len(data) != expected[name]:
            raise VerifierLost(f"{name} came with {len(data)} of {expected[name]} bytes")
    files = TokenizerFiles({name: bytes(data) for name, data in received.items()})
    if files.sha256 != info.tokenizer_sha256:
        raise VerifierLost(
            f"the verifier's tokenizer.json has SHA-256 {files.sha256}, and its model "
            f"{info.tokenizer_sha256}"
        )
    return info, files
