"""Triton kernels that sample draft tokens. Reference: drafter/engine/distribution.py.

May import common.kernels.
"""
