"""The crossdraft command, one file for each subcommand.

May import everything but bench and tests.
"""
