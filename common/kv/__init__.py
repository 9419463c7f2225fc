"""KV pages: who owns which, where they lie, how many there are.

May import errors. Knows no model.
"""
