"""Triton kernels that sample draft tokens. Plain mapped_id: drafter/engine/distribution.py.

May import common.kernels.
"""
