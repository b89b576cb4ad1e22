"""Foreign gRPC services on our port, so that their clients need no change.

Each dialect turns its messages into text requests and back. What it cannot express, or we do not
have, is refused by name.
"""
