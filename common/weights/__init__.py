"""Model names to files on disk: presets, GGUF, folders, Hub ids.

May import errors.
"""
