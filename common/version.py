"""The version that both services tell."""

VERSION = "0.1.0"
