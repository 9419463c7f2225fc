"""Kernels for CPUs, in C (src/): int8 products, and a whole pass of known decoder layers.

May import errors; numpy and ctypes beside them, never torch.
"""
