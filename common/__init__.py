"""What both services use. The packages, from those that import most to those that import least:
engine, wire | model | kv, rpc | device, kernels, telemetry | sampling, vocabulary, weights,
settings, addresses, causes. tests/test_architecture.py holds who may import whom.
"""
