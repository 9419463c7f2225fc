"""The small model's service. speculation.py is the map: one session from prompt to finish.

May import common, never verifier.
"""
