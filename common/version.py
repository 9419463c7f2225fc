"""The version that both services report."""

VERSION = "0.1.0"
