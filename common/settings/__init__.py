"""Settings from TOML, environment and flags, as frozen dataclasses.

May import errors.
"""
