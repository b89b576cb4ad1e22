"""The device loop in a process of its own, and the engine of the serving process that drives it."""
