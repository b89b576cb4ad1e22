"""From a command line to the target that it names."""

from __future__ import annotations

import argparse

from omruntime.errors import ConfigError, RequestError
from server.client.arguments import CallOptions
from server.client.security import ClientSecurity
from server.terminal.bench.targets.deltas import params_of
from server.terminal.bench.targets.over_grpc import GrpcTarget
from server.terminal.bench.targets.over_openai import OpenAiTarget
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
    if backend == "grpc":
        return GrpcTarget(arguments.target, security, options)
    if backend == "in-process":
        return await _open_in_process(arguments, options)
    if arguments.base_url is None:
        raise RequestError(f"--backend {backend} needs --base-url, such as http://localhost:8000")
    return OpenAiTarget(arguments.base_url, security, options, backend == "openai-chat")


async def _open_in_process(arguments: argparse.Namespace, options: AskOptions) -> Target:
    if arguments.bundle is None:
        raise RequestError("--backend in-process needs --bundle, a folder of export-om build")
    if options.model is not None:
        raise RequestError("--model is a served name; --backend in-process has the bundle's alone")
    try:
        from server.terminal.bench.targets.in_process import InProcessTarget
    except ImportError as error:
        raise ConfigError(
            f"--backend in-process needs the serving libraries ({error}); install them with: "
            f"pip install '.[cpu]' in omserve's folder"
        ) from error
    return await InProcessTarget.open(arguments.bundle, arguments.device or "cpu", options)


def ask_options_of(arguments: argparse.Namespace) -> AskOptions:
    """What all requests have in common.

    Raises:
        RequestError: The time limit or the temperature is out of range.
    """
    CallOptions(timeout_s=arguments.timeout_s)
    ignores = arguments.ignore_eos
    options = AskOptions(
        model=arguments.model,
        temperature=arguments.temperature,
        ignore_eos=arguments.dataset_path is None if ignores is None else ignores,
        timeout_s=arguments.timeout_s,
    )
    params_of(options, 1)  # says what is wrong before the first request does
    return options
