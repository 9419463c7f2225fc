"""The draft engine: batched draft steps, sampling of draft tokens, token healing.

May import common, drafter.bridge and drafter.kernels.
"""
