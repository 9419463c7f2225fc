"""A Hugging Face model over variable-length batches and KV pages, on a CPU, a GPU, or ranks.

May import kv, kernels, device, weights; errors.
"""
