"""What the subcommands share: arguments they have in common, and one refusal."""

from __future__ import annotations

import argparse

from omruntime.errors import ConfigError


def add_number(parser: argparse.ArgumentParser, flag: str, default: int, text: str) -> None:
    """Add an integer flag whose help names its default."""
    text = f"{text} (default: {default})"
    parser.add_argument(flag, type=int, metavar="N", default=default, help=text)


def add_traceback(parser: argparse.ArgumentParser) -> None:
    """Add the flag that every subcommand takes, see `run_reported`."""
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")


def missing_libraries(error: ImportError) -> ConfigError:
    """The refusal of a subcommand that needs more than a serving install."""
    return ConfigError(
        f"this command needs the export libraries ({error}); "
        f"install them with: pip install '.[export]' in omserve's folder"
    )
