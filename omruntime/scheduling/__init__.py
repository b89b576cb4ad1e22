"""Who runs in the next step, and in which bucket."""
