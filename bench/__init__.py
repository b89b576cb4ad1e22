"""Benchmarks: ratios measured in one run, never timings asserted in a test."""
