"""Constraints to grammars: what is enforced, the library that enforces it, and a cache."""
