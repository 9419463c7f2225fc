"""Sampling parameters, acceptance rules, the distribution p, counter-based random numbers.

May import errors. Plain torch: Triton twins are in common/kernels.
"""
