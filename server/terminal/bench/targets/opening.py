"""From a command line to the target that it names."""

from __future__ import annotations

import argparse

from omruntime.errors import RequestError
from server.client.arguments import CallOptions
from server.client.security import ClientSecurity
from server.terminal.bench.targets.over_grpc import GrpcTarget
from server.terminal.bench.targets.target import AskOptions, Target

# Which flags are of which backends alone.
_FLAGS = {
    "base_url": ("openai", "openai-chat"),
    "bundle": ("in-process",),
    "device": ("in-process",),
}


async def open_target(arguments: argparse.Namespace, security: ClientSecurity) -> Target:
    """The target of a parsed command line; the caller closes it.

    Raises:
        OmError: A flag is wrong, or a bundle in this process does not load.
    """
    backend = arguments.backend
    for name, backends in _FLAGS.items():
        if getattr(arguments, name) is not None and backend not in backends:
            flag = "--" + name.replace("_", "-")
            raise RequestError(f"{flag} is of --backend {' and '.join(backends)}, got {backend}")
    options = ask_options_of(arguments)
    return GrpcTarget(arguments.target, security, options)


def ask_options_of(arguments: argparse.Namespace) -> AskOptions:
    """What all requests have in common.

    Raises:
        RequestError: The time limit is no number of seconds.
    """
    CallOptions(timeout_s=arguments.timeout_s)
    ignores = arguments.ignore_eos
    return AskOptions(
        model=arguments.model,
        temperature=arguments.temperature,
        ignore_eos=arguments.dataset_path is None if ignores is None else ignores,
        timeout_s=arguments.timeout_s,
    )
