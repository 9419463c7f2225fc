"""Tokens per second: systems side by side, batches, rows, drafting ahead."""
