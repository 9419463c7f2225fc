"""How much of a text would the target have written itself? One call, no session.

    python examples/verify_once_client.py "the target's prompt" " what somebody proposes"

Needs nothing of Crossdraft but the generated stubs. At temperature 0 tokens are accepted while they
are the target's argmax; the answer has their number, and the target's own next token.
"""

import argparse
from collections.abc import Sequence

import grpc
from tokenizers import Tokenizer

from common.pb import verifier_pb2 as pb
from common.pb.verifier_pb2_grpc import VerifierServiceStub


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("proposal")
    parser.add_argument("--verifier", default="127.0.0.1:50051")
    flags = parser.parse_args(arguments)
    with grpc.insecure_channel(flags.verifier) as channel:
        stub = VerifierServiceStub(channel)
        model = stub.GetModel(pb.GetModelRequest())
        parts = stub.GetTokenizer(pb.GetTokenizerRequest())
        chunks = [part.chunk for part in parts if part.filename == "tokenizer.json"]
        tokenizer = Tokenizer.from_buffer(b"".join(chunks))
        draft = tokenizer.encode(flags.proposal, add_special_tokens=False).ids
        draft = draft[: model.max_draft_tokens]
        opening = pb.Open(
            prompt_token_ids=tokenizer.encode(flags.prompt).ids,
            max_new_tokens=len(draft) + 1,
            tokenizer_sha256=model.tokenizer_sha256,
        )
        answer = stub.VerifyOnce(pb.VerifyOnceRequest(open=opening, draft_token_ids=draft))
    verdict = answer.verdict
    accepted = tokenizer.decode(draft[: verdict.accepted_length])
    print(f"{verdict.accepted_length} of {len(draft)} tokens are accepted: {accepted!r}")
    if verdict.HasField("next_token_id"):
        print(f"then the target writes {tokenizer.decode([verdict.next_token_id])!r}")


if __name__ == "__main__":
    main()
