"""ControlService and what it shows and steers: load, buckets, state, draining."""
