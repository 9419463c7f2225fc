"""Triton kernels that sample draft tokens. Plain twin: drafter/engine/distribution.py.

May import common.kernels.
"""
