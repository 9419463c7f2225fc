"""A verifier's client that drafts without a model: it proposes what followed the same text before.

    python examples/lookup_client.py "a b c a b c a" --temperature 0.7 --seed 1

Needs nothing of Crossdraft but the generated stubs. It names no acceptance rule, so the verifier
selects greedy at temperature 0, coupled with a seed, target-only otherwise: lossless for any draft.
"""

import argparse
import queue
from collections.abc import Iterator, Sequence

import grpc
from tokenizers import Tokenizer

from common.pb import verifier_pb2 as pb
from common.pb.sampling_pb2 import Sampling
from common.pb.verifier_pb2_grpc import VerifierServiceStub


def lookup(tokens: list[int], k: int, longest: int = 3) -> list[int]:
    """Up to k tokens that followed the latest earlier occurrence of the last few."""
    for n in range(longest, 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


def generate(stub: VerifierServiceStub, opening: pb.Open, k: int) -> Iterator[list[int]]:
    """The tokens that each round commits; the first round is the prefill."""
    requests: queue.SimpleQueue[pb.VerifyRequest | None] = queue.SimpleQueue()
    requests.put(pb.VerifyRequest(open=opening))
    tokens, draft = list(opening.prompt_token_ids), list[int]()
    try:
        for answer in stub.Verify(iter(requests.get, None)):
            verdict = answer.verdict
            run = draft[: verdict.accepted_length]
            run += [verdict.next_token_id] if verdict.HasField("next_token_id") else []
            tokens += run
            yield run
            if verdict.finish_reason:
                return
            draft = lookup(tokens, k)
            proposal = pb.Proposal(
                round=verdict.round + 1, base_length=len(tokens), token_ids=draft
            )
            requests.put(pb.VerifyRequest(proposal=proposal))
    finally:
        requests.put(None)  # closes our side of the stream


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--verifier", default="127.0.0.1:50051")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=8)
    for option, kind in (("temperature", float), ("top-p", float), ("top-k", int), ("seed", int)):
        parser.add_argument(f"--{option}", type=kind)
    flags = parser.parse_args(arguments)
    with grpc.insecure_channel(flags.verifier) as channel:
        stub = VerifierServiceStub(channel)
        model = stub.GetModel(pb.GetModelRequest())
        parts = stub.GetTokenizer(pb.GetTokenizerRequest())
        chunks = [part.chunk for part in parts if part.filename == "tokenizer.json"]
        tokenizer = Tokenizer.from_buffer(b"".join(chunks))
        given = {name: getattr(flags, name) for name in ("temperature", "top_p", "top_k", "seed")}
        opening = pb.Open(
            prompt_token_ids=tokenizer.encode(flags.prompt).ids,
            max_new_tokens=flags.max_new_tokens,
            tokenizer_sha256=model.tokenizer_sha256,
            sampling=Sampling(**given),  # what is None stays absent
        )
        runs = list(generate(stub, opening, min(flags.draft_tokens, model.max_draft_tokens)))
    print(tokenizer.decode([token for run in runs for token in run]))
    print(f"{sum(map(len, runs[1:]))} tokens in {len(runs) - 1} rounds after the first")


if __name__ == "__main__":
    main()
