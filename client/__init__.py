"""A client of the drafter: requests, streamed pieces, resuming after a lost drafter.

May import common. Used by cli, bench and whoever embeds it.
"""
