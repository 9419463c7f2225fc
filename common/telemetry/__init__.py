"""Metrics (each named once), their registry and listener, tracing, logs, request ids.

May import types, errors and version.
"""
