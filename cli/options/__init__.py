"""Flags that several subcommands share, and the values they make.

May import client and common.
"""
