"""Logits to token ids, row by row, reproducibly."""
