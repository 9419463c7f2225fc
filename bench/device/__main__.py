"""`python -m bench.device`: everything that only a GPU can show, in one command of under 8 minutes.

    ceilings    copy bandwidth, bf16 products
    checks      kernels against a float64 oracle, on fresh random inputs
    parts       what services are made of, up to a whole engine, against the CPU's own
acceptance  acceptance kernels, with torch and two-pass sampling beside
    models      steps at real shapes, random weights: rows, batches, called and replayed
    pair        both services over gRPC on loopback, acceptance scripted; k = 0 against k > 0
    attention, drafts, products    the other kernels, FlashInfer beside where it is installed
    tune, profile                             only with --only

Each has a share of the time and says what it left out. Results go to device.json in --out, $OUT or
bench/out, after every stage; a stage that fails is reported and the others run. Without CUDA, or
with --small, it runs in a tiny form under Triton's interpreter, where times mean nothing.

No network is needed. Beside torch and transformers the services import accelerate, safetensors,
tokenizers, numpy, psutil, jinja2, click, grpc with its health service and protobuf, opentelemetry's
API and prometheus_client. A machine without the last five gets them as small wheels:
bench/device/wheels.txt lists them and says how. Of all packages that the services may import only
reflection can be missing: it is off here, and a service that is asked to serve it without having it
says so in its log. grpcio-tools, rich and gguf aren't needed, nor is the Hub.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.device.budget import Budget
    from bench.device.stages import Bench

SECONDS = {  # of each stage; what one doesn't use is the next one's
    "ceilings": 15,
    "checks": 55,
    "parts": 35,
    "acceptance": 70,
    "models": 95,
    "pair": 140,  # finds most of its kernels compiled by the stages before
    "attention": 25,
    "drafts": 7,
    "products": 20,
}
ONLY_ASKED = {"tune": 240, "profile": 60}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--only", nargs="+", choices=[*SECONDS, *ONLY_ASKED], metavar="STAGE")
    parser.add_argument("--seed", type=int, help="of the inputs; fresh ones if not given")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "bench/out"))
    given = parser.parse_args()

    import torch

    small = given.small or not torch.cuda.is_available()
    if small:
        from common.kernels.interpreter import interpret

        interpret()
    from bench.device import stages as device_stages
    from bench.device.summary import summary

    seed = time.time_ns() & 0xFFFFFFFF if given.seed is None else given.seed
    torch.manual_seed(seed)
    given.out.mkdir(parents=True, exist_ok=True)
    bench = device_stages.Bench(torch.device("cpu" if small else "cuda"), small, given.out)
    found = {"seed": seed, **about(small), "stages": {}}
    names = given.only or list(SECONDS)
    if "ceilings" not in names:
        names = ["ceilings", *names]
    run_stages(names, bench, found, lambda name: getattr(device_stages, name))
    print("\n".join(summary(found)), flush=True)


def about(small: bool) -> dict[str, Any]:
    """What ran where."""
    import torch
    import transformers
    import triton

    name = "CPU, interpreted: times mean nothing" if small else torch.cuda.get_device_name()
    versions = {each.__name__: each.__version__ for each in (torch, transformers, triton)}
    return {"device": name, **versions}


def run_stages(
    names: list[str],
    bench: Bench,
    found: dict[str, Any],
    stage: Callable[[str], Callable[[Bench, Budget], dict[str, Any]]],
) -> None:
    """One after another, each until its share of the time is over; written down after each."""
    from bench.device.budget import Budget

    shares = {**SECONDS, **ONLY_ASKED}
    timeout = 10 if bench.small else 1  # a GPU's time is counted, a small machine is just slow
    begin = end = time.monotonic()
    for name in names:
        end += shares[name] * timeout
        budget = Budget(end - time.monotonic())
        try:
            reported = stage(name)(bench, budget)
        except Exception:  # reported, so that the others run
            reported = {"failed": traceback.format_exc()}
            print(f"{name} failed:\n{reported['failed']}", flush=True)
        reported = {**reported, "seconds": budget.used, "left_out": budget.left_out}
        found["stages"][name] = reported
        found["seconds"] = time.monotonic() - begin
        (bench.out / "device.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
        left_out = f", {len(budget.left_out)} parts left out" if budget.left_out else ""
        print(f"{name}: {budget.used:.1f} s{left_out}", flush=True)


if __name__ == "__main__":
    main()
