"""Text from a drafter, over nothing but gRPC and the generated stubs.

    python examples/generate_client.py 127.0.0.1:50052 "Once upon a time" --temperature 0.8 --seed 7

Pieces come as they are committed; the last message carries the summary. Leave the seed out, and the
same call gives another text each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import grpc

from common.pb import drafter_pb2, drafter_pb2_grpc


def request_of(flags: argparse.Namespace) -> drafter_pb2.GenerateRequest:
    request = drafter_pb2.GenerateRequest(
        prompt=flags.prompt, max_new_tokens=flags.max_new_tokens, stop=flags.stop
    )
    # An absent field leaves its step out, so only what was given is set.
    if flags.temperature is not None:
        request.sampling.temperature = flags.temperature
    if flags.top_p is not None:
        request.sampling.top_p = flags.top_p
    if flags.seed is not None:
        request.sampling.seed = flags.seed
    return request


def stream(
    address: str, request: drafter_pb2.GenerateRequest
) -> Iterator[str | drafter_pb2.Summary]:
    """Text as it comes, then the summary."""
    with grpc.insecure_channel(address) as channel:
        for response in drafter_pb2_grpc.DrafterServiceStub(channel).Generate(request):
            yield from (piece.text for piece in response.pieces)
            if response.HasField("summary"):
                yield response.summary.tail_text
                yield response.summary


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate text with a drafter.")
    parser.add_argument("address", help="where the drafter listens, 127.0.0.1:50052 say")
    parser.add_argument("prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", default=[])
    flags = parser.parse_args()
    try:
        for part in stream(flags.address, request_of(flags)):
            if isinstance(part, str):
                print(part, end="", flush=True)
            else:
                print(f"\n{part.output_tokens} tokens in {part.rounds} rounds", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
