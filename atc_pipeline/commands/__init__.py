"""The subcommands of `export-om`, one module each: its arguments, its run, what it prints.

A module offers `add_parser(commands)`. The exporter is imported inside of the function that
runs, so that `inspect` and `--help` need no torch.
"""
