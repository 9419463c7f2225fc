"""Triton kernels that both services launch: attention, row-wise layers, scans of logits.

May import nothing of ours. What each computes, in plain torch: common/kernels/reference.py.
"""
