"""What two vocabularies have in common, before anything is served.

May import common and drafter.bridge.
"""
