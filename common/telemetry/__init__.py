"""Metrics (each named once), their registry and listener, tracing, logs, request ids.

May import sampling; types, errors and version.
"""
