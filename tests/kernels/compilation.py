"""Compiles every kernel for GPUs, without one: `python -m tests.kernels.compilation 80 90 100`.

A process of its own, since kernels are either interpreted or compiled. Prints one JSON object per
kernel and target: registers, shared memory, spilled bytes. The kernels are those of
tests/kernels/compiled_cases.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.compiled_cases import CASES, Case

VARYING = {"rows", "sessions", "first_tile", "first_row", "q_width"}  # from step to step


def compiled(case: Case, capability: int) -> dict[str, Any]:
    """Compile one case and ask cuobjdump what it needs."""
    names = case.kernel.arg_names
    signature = {
        name: "constexpr" if name in case.constants else case.types[name] for name in names
    }
    aligned = [
        (at,)
        for at, name in enumerate(names)
        if signature[name].startswith("*") or name in case.multiples_of_16
    ]
    source = ASTSource(
        case.kernel,
        signature,
        constexprs={name: case.constants[name] for name in names if name in case.constants},
        attrs={at: [["tt.divisibility", 16]] for at in aligned},
    )
    made = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": case.warps, "num_stages": case.stages, "maxnreg": case.registers},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _usage(file.name)
    return {
        "kernel": case.name,
        "target": f"sm_{capability}",
        "warps": case.warps,
        "registers": int(usage["REG"]),
        "shared": made.metadata.shared,
        "spilled": int(usage["LOCAL"]) + int(usage["STACK"]),
        "compiled_anew_for": [
            each.name
            for each in case.kernel.params
            if each.name in VARYING and not each.do_not_specialize
        ],
        "nan_maxima": made.asm["ptx"].count("max.NaN.f32"),
        "wide_loads": len(re.findall(r"ld\.global[.\w]*\.v4\.b32", made.asm["ptx"])),
    }


def _usage(cubin: str) -> dict[str, str]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    reported = subprocess.run(
        [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    return dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", reported))


def _needed(name: str) -> bool:
    """Elsewhere than on sm_90 the forms that most services run: other dtypes are left out."""
    return not name.endswith((", fp16", ", fp32"))


def main() -> None:
    for capability in map(int, sys.argv[1:]):
        for case in CASES:
            if capability != 90 and not _needed(case.name):
                continue
            print(json.dumps(compiled(case, capability)), flush=True)


if __name__ == "__main__":
    main()
