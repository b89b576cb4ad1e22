"""What traffic is made of: when requests arrive, how long they are, and quantiles of what was seen.

Shared by simulated replays and by the load generator. Needs nothing but the standard library.
"""
