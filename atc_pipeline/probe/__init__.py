"""First-hardware-run probes: what this project assumes of ATC and of a card, each checked.

The table is `table.py`. Nothing here is needed to build or to serve; a probe that cannot run
says so and passes for nothing.
"""
