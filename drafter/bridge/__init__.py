"""What crosses from the draft vocabulary to the target vocabulary, and back: token maps, the
draft context, proposals, prompt lookup.

May import common.
"""
