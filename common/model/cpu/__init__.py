"""How a model computes on the CPU: linears, attention, and what runs between them, row by row.

May import the KV cache and the batch; never what loads or checks a model.
"""
