"""The thread that a model runs on, its sequences and how they are packed, its memory, its server.

May import model, kv, device, rpc, telemetry; errors.
"""
