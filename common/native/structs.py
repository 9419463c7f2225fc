"""The structures that src/step.h and src/product.h declare, field by field.

Pointers are addresses: whoever fills them keeps what they point to alive.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int64, c_void_p

INTERFACE_VERSION = 1  # src/step.c has the same: another one is another build

SILU, GELU = 2, 3  # `ending` in src/product.h
PANEL, DEPTH, SHARED, GROUP = 16, 64, 512, 16  # src/product.h
MOST_HEADS = 32  # that share a KV head, src/attention.h
MOST_ANGLES = 2  # kinds of rotary angles, src/step.h


def filled_up(count: int, to: int) -> int:
    """The next multiple."""
    return -(-count // to) * to


class Linear(Structure):
    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
        ("inner", c_int64),
        ("outer", c_int64),
    )


class Activations(Structure):
    _fields_ = (("parts", c_void_p), ("scales", c_void_p))


class Layer(Structure):
    _fields_ = (
        ("qkv", Linear),
        ("out", Linear),
        ("gates", Linear),
        ("down", Linear),
        ("before_attention", c_void_p),
        ("before_mlp", c_void_p),
        ("after_attention", c_void_p),
        ("after_mlp", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("angles", c_int64),
    )


class Model(Structure):
    _fields_ = (
        ("layers", c_void_p),
        ("last_norm", c_void_p),
        ("head", Linear),
        *((name, c_int64) for name in ("depth", "width", "heads", "kv_heads", "head_size")),
        *((name, c_int64) for name in ("mlp_width", "vocab", "activation")),
        ("epsilon", c_float),
        ("scaling", c_float),
    )


class Batch(Structure):
    _fields_ = (
        ("hidden", c_void_p),
        ("cosines", c_void_p * 2),
        ("sines", c_void_p * 2),
        *((name, c_void_p) for name in ("slots", "ends", "tables", "pages", "wanted", "logits")),
        *((name, c_int64) for name in ("rows", "wanted_rows", "page_size")),
        *((name, c_void_p) for name in ("qkv", "attended", "gated", "normed")),
        ("quantised", Activations),
    )
