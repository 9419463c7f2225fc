"""The large model's service. engine.py is the map: one step of the batch.

May import common, never drafter.
"""
