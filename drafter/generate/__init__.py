"""The Generate call: what a request may say, and what its stream replies.

May import common, drafter.bridge and the session.
"""
