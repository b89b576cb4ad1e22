"""The flags of `om-client` that stand for a call's way: where to, how safely, and its turn."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from omruntime.scheduling.turn import Scheduling, Urgency
from server.client.arguments import CallOptions
from server.client.retries import Retries
from server.client.security import KEY_VARIABLE, ClientSecurity, read_api_key
from server.terminal.terminal_client import TerminalClient
from server.text import OutputOptions


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where to, and how safely."""
    parser.add_argument(
        "--target",
        default="localhost:50051",
        help="host:port, [ipv6]:port or unix:path (default: %(default)s)",
    )
    _add_security_flags(parser)


def add_call_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every call for an answer has."""
    add_connection_flags(parser)
    parser.add_argument("--model", help="served name; default: the served model")
    parser.add_argument("--request-id", help="default: one is made")
    parser.add_argument("--cache-salt", default="", help="share cached prompts with equal salts")
    parser.add_argument(
        "--bypass-prefix-cache", action="store_true", help="compute the prompt anew; default: no"
    )
    parser.add_argument(
        "--template-arguments",
        type=_parse_object,
        metavar="JSON",
        help="extra variables for the chat template, an object",
    )
    parser.add_argument("--timeout-s", type=float, help="deadline in seconds; default: none")
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="tries beside the first where no server can have accepted the call: a refusal that "
        "says when to come back, or no connection (default: %(default)s)",
    )
    _add_scheduling_flags(parser)


def _add_security_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("security")
    for flag, what in (
        ("--tls-ca", "PEM roots of the server's certificate; default: no TLS"),
        ("--tls-cert", "PEM certificate of this client, where the server demands one"),
        ("--tls-key", "PEM key of --tls-cert"),
        ("--api-key-file", f"file that holds the API key; default: the variable {KEY_VARIABLE}"),
    ):
        group.add_argument(flag, type=Path, metavar="FILE", help=what)
    group.add_argument(
        "--tls-server-name", metavar="NAME", help="in its certificate; default: the target's host"
    )


def terminal_client_of(
    arguments: argparse.Namespace, environ: Mapping[str, str], max_retries: int = 0
) -> TerminalClient:
    """The client of a parsed command line.

    Raises:
        RequestError: A value is out of range, the parts of the security do not go together, or the
            key's file cannot be read.
    """
    security = security_of(arguments, environ)
    return TerminalClient(arguments.target, security, Retries(max_retries))


def security_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> ClientSecurity:
    """TLS and key of a parsed command line; raises as `terminal_client_of`."""
    return ClientSecurity(
        tls_ca=arguments.tls_ca,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_server_name=arguments.tls_server_name,
        api_key=read_api_key(arguments.api_key_file, environ),
    )


def _add_scheduling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling")
    group.add_argument(
        "--urgency",
        choices=[urgency.name.lower() for urgency in Urgency],
        default=Urgency.NORMAL.name.lower(),
        help="higher classes come first (default: %(default)s)",
    )
    group.add_argument(
        "--queue-timeout-s",
        type=float,
        metavar="X",
        help="end when it does not begin to run within so many seconds; default: wait",
    )
    for name, what in (("ttft", "to the first token"), ("itl", "between tokens")):
        group.add_argument(
            f"--{name}-target-s",
            type=float,
            metavar="X",
            help=f"wished seconds {what}; default: the server's",
        )
    group.add_argument("--tenant", default="", help="tenants share the engine; default: none")


def call_options_of(arguments: argparse.Namespace, echo: bool = False) -> CallOptions:
    """The options of a parsed command line.

    Raises:
        RequestError: A value is out of range.
    """
    scheduling = Scheduling(
        urgency=Urgency[arguments.urgency.upper()],
        tenant=arguments.tenant,
        queue_timeout_s=arguments.queue_timeout_s,
        ttft_target_s=arguments.ttft_target_s,
        itl_target_s=arguments.itl_target_s,
    )
    return CallOptions(
        request_id=arguments.request_id,
        model=arguments.model,
        cache_salt=arguments.cache_salt,
        template_arguments=arguments.template_arguments,
        timeout_s=arguments.timeout_s,
        scheduling=scheduling,
        output=OutputOptions(echo=echo),
        bypasses_prefix_cache=arguments.bypass_prefix_cache,
    )


def _parse_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a JSON object")
    return value
