"""The version that both services report."""

VERSION = "0.2.0"
