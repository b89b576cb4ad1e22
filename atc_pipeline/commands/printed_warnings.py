"""Warnings on stderr, beside whatever a command prints for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def print_warnings(warnings: Iterable[str]) -> None:
    """One line each."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
