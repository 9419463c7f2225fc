"""Tokenizer files; the exact bytes and roles of tokens; plain text, prompts and chats.

May import errors.
"""
