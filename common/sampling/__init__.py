"""Sampling parameters, acceptance rules, the distribution p, counter-based random numbers.

May import errors. Plain torch: the same in Triton: common/kernels.
"""
