"""The acceptance rules as Triton kernels. The same in plain torch: verifier/acceptance/rules.py.

May import common.kernels and verifier.acceptance.batch.
"""
