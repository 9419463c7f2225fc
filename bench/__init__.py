"""Benchmarks; `python -m bench` compares whole systems. docs/benchmarks.md has the results."""
