"""The drafter's end of the Verify stream: which verifier, and what happens when one is lost.

May import common.
"""
