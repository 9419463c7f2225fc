"""Which draft tokens are accepted and which token follows: the rules in plain torch (the CPU
path), batches of sessions, token counts, log-probabilities.

May import common, verifier.session; the device sampler also verifier.kernels.
"""
