"""The acceptance rules as Triton kernels. Plain twin: verifier/acceptance/rules.py.

May import common.kernels and verifier.acceptance.batch.
"""
