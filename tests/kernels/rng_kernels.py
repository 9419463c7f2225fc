"""Kernels that store what rng_triton's device functions return, and their compilation for a GPU.

A module of its own, since Triton reads the sources of what it compiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels import rng as rng_triton


@triton.jit
def words_by_id(
    seed_ptr: tl.tensor,
    position_ptr: tl.tensor,
    id_ptr: tl.tensor,
    words_ptr: tl.tensor,
    uniforms_ptr: tl.tensor,
    exponentials_ptr: tl.tensor,
    purpose: tl.tensor,
    n: tl.constexpr,
) -> None:
    at = tl.arange(0, n)
    seed, position = tl.load(seed_ptr + at), tl.load(position_ptr + at)
    token_id = tl.load(id_ptr + at)
    word = rng_triton.id_words(seed, position, token_id, purpose)
    tl.store(words_ptr + at, word.to(tl.int64))
    tl.store(uniforms_ptr + at, rng_triton.uniform(seed, position, purpose))
    made = rng_triton.exponential(seed, position, token_id, purpose)
    tl.store(exponentials_ptr + at, made)


@triton.jit
def words_of_runs(
    seed_ptr: tl.tensor,
    position_ptr: tl.tensor,
    first_ptr: tl.tensor,
    words_ptr: tl.tensor,
    exponentials_ptr: tl.tensor,
    purpose: tl.tensor,
    n: tl.constexpr,
) -> None:
    """One run of n ids per program."""
    row = tl.program_id(0)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    first_id = tl.load(first_ptr + row)
    at = row * n + tl.arange(0, n)
    word = rng_triton.run_words(seed, position, first_id, purpose, n)
    tl.store(words_ptr + at, word.to(tl.int64))
    made = rng_triton.run_exponential(seed, position, first_id, purpose, n)
    tl.store(exponentials_ptr + at, made)


def compile_for_hopper() -> None:
    """Both kernels to machine code for compute capability 9.0; no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, n in ((words_by_id, 256), (words_of_runs, 1024)):
        types = {"words_ptr": "*i64", "uniforms_ptr": "*fp32", "exponentials_ptr": "*fp32"}
        signature = {name: types.get(name, "*i64") for name in kernel.arg_names}
        signature |= {"purpose": "i32", "n": "constexpr"}
        source = ASTSource(kernel, signature=signature, constexprs={"n": n})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert made.asm["cubin"]
