"""Who may call: TLS, bearer tokens, calls for each peer.

May import errors only.
"""
