"""Text from a drafter as it is committed, over nothing but gRPC and the generated stubs.

python examples/generate_client.py 127.0.0.1:50052 "Once upon a time" --temperature 0.8 --seed 7
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import grpc

from common.pb import drafter_pb2, drafter_pb2_grpc


def request_of(flags: argparse.Namespace) -> drafter_pb2.GenerateRequest:
    request = drafter_pb2.GenerateRequest(
        prompt=flags.prompt, max_new_tokens=flags.max_new_tokens, stop=flags.stop
    )
    for name in ("temperature", "top_p", "seed"):  # an absent field leaves its step out
        if getattr(flags, name) is not None:
            setattr(request.sampling, name, getattr(flags, name))
    return request


def stream(
    address: str, request: drafter_pb2.GenerateRequest, timeout_s: float
) -> Iterator[str | drafter_pb2.Summary]:
    """Text as it comes, then the summary. When a drafter is lost, the request goes to it or its
    successor again: with the ids of the tokens that have come, it continues after them."""
    lost_at, complete = None, False
    # To notice one that comes back: by itself gRPC waits up to two minutes between tries.
    soon = [(f"grpc.{name}_reconnect_backoff_ms", 500) for name in ("initial", "min", "max")]
    with grpc.insecure_channel(address, soon) as channel:
        while True:
            try:
                for response in drafter_pb2_grpc.DrafterServiceStub(channel).Generate(request):
                    lost_at = None
                    if response.HasField("summary"):
                        yield response.summary
                        return
                    for delta in response.deltas.deltas:
                        yield "" if complete else delta.text
                        complete = not delta.HasField("token_id")  # text left over at the end
                        request.resumed_token_ids.extend([] if complete else [delta.token_id])
            except grpc.RpcError as error:
                lost_at = lost_at or time.monotonic()
                own = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
                broken = () if own else ("CANCELLED", "INTERNAL", "UNKNOWN")
                lost = error.code().name in ("UNAVAILABLE", *broken)
                if not lost or time.monotonic() - lost_at >= timeout_s:
                    raise
                time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate text with a drafter.")
    parser.add_argument("address", help="where the drafter listens, 127.0.0.1:50052 say")
    parser.add_argument("prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    for name, kind in (("--temperature", float), ("--top-p", float), ("--seed", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--stop", action="append", default=[])
    parser.add_argument("--retry", type=float, default=0.0, help="seconds without a drafter")
    flags = parser.parse_args()
    try:
        for part in stream(flags.address, request_of(flags), flags.retry):
            if isinstance(part, str):
                print(part, end="", flush=True)
            else:
                print(f"\n{part.output_tokens} tokens in {part.rounds} rounds", file=sys.stderr)
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
