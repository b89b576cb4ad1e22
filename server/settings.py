"""Settings: how this process serves, from flags and environment.

A flag beats its `OMSERVE_*` variable, that beats the default. After `Settings.load` nobody reads
the environment and nothing is changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from omruntime.command_parser import CommandParser
from omruntime.errors import ConfigError
from omruntime.settings import MIB as MIB
from omruntime.settings import EngineSettings
from server.logs import LEVELS
from server.options import ENV_PREFIX, Option, OptionValue, options_of
from server.version import omserve_version

# A message length is a signed 32-bit number of bytes in gRPC.
_MAX_MESSAGE_MIB = 2047

# Of `om-client`; a machine with both is no mistake.
CLIENT_KEY_VARIABLE = "OMSERVE_API_KEY"

# Kubernetes gives every pod variables for each Service; one for a Service named `omserve` must
# not stop the server.
_SERVICE_LINK = re.compile(
    r"OMSERVE_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?"
    r"|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)

ENGINE_HELP = {
    "isolate_device": "Device in its own process, started anew if it dies; unset: for ascend:N.",
    "step_timeout_s": "Seconds after which a step on a chip or in an own process is stuck.",
    "load_timeout_s": "Seconds of silence after which an own process that loads is stuck.",
    "allow_faults": "Tests only: take --inject-fault, which breaks answers on purpose.",
    "inject_fault": "Tests only: faults such as error@3,kill@5; needs --allow-faults.",
    "device": "For cpu bundles cpu, openvino, native; for Ascend ascend:N, or sim:N to simulate.",
    "kv_memory_mib": "Memory for cached keys and values, MiB; more lets more answers run at once.",
    "num_blocks": "Blocks of the KV pool, the null block included; overrides --kv-memory-mib.",
    "max_num_seqs": "Most answers that run at once; unset: as many as the bundle was built for.",
    "max_model_len": "Most tokens of prompt plus answer; unset: as the bundle was built for.",
    "max_chunk_tokens": "Longest piece of a prompt per step, tokens; shorter stalls answers less.",
    "enable_prefix_cache": "Reuse the keys and values of equal prompt beginnings.",
    "max_queued_requests": "Waiting requests beyond which new ones are refused.",
    "max_queued_tokens": "Waiting prompt tokens beyond which new requests are refused.",
    "num_threads": "Threads of cpu, openvino and native; 0: one for each core.",
    "ttft_target_ms": "Wished ms to the first token; after about 1 s people turn elsewhere.",
    "itl_target_ms": "Wished ms between tokens; 100 is twice as fast as people read.",
    "deterministic": "Same numbers whatever else runs, by one bucket per phase; much slower.",
    "overlap_scheduling": "Plan the next step while the device works; unset: for ascend:N, sim:N.",
    "check_invariants_every": "Steps between checks of the engine's own state; 0: never.",
    "cache_dir": "Folder for measured costs; it may be read-only, never the bundle.",
}

_ENDPOINT = re.compile(r"https?://([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}/?")

# How models write tool calls down; the parsers are the HTTP gateway's.
TOOL_PARSERS = ("hermes", "llama3")
# How models mark their thoughts; the splitter is the HTTP gateway's, too.
REASONING_PARSERS = ("auto", "think", "none")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that flags and environment decide.

    Attributes:
        engine: The engine's part.
    """

    bundle: Path = field(metadata=_help("Folder that `export-om build --output` wrote."))
    host: str = field(
        default="127.0.0.1",
        metadata=_help("Address to listen on; beyond loopback needs TLS, see --tls-cert."),
    )
    grpc_port: int = field(
        default=50051, metadata=_help("gRPC port; 0: any free one, see --port-file.")
    )
    http_port: int | None = field(
        default=None,
        metadata=_help("Port of the OpenAI HTTP gateway; 0: any free one; unset: no gateway."),
    )
    port_file: Path | None = field(
        default=None, metadata=_help("File to write the gRPC port to, once it is open.")
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_help("PEM certificate chain for TLS on both ports; read again when it changes."),
    )
    tls_key: Path | None = field(
        default=None, metadata=_help("PEM key of --tls-cert, without a passphrase.")
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=_help("PEM roots of client certificates, which are then demanded (mTLS)."),
    )
    api_keys: Path | None = field(
        default=None,
        metadata=_help("File of API keys, which are then demanded; see om-serve keys."),
    )
    allow_insecure_listen: bool = field(
        default=False,
        metadata=_help("Listen beyond loopback without TLS: all that is sent can be read."),
    )
    served_model_name: str | None = field(
        default=None, metadata=_help("Name that requests use; unset: the bundle's model name.")
    )
    tool_parser: str | None = field(
        default=None,
        metadata=_help("How the model writes tool calls: hermes or llama3; unset: by template."),
    )
    reasoning_parser: str = field(
        default="auto",
        metadata=_help("How the model marks thoughts: think or none; auto: by template."),
    )
    log_level: str = field(default="info", metadata=_help(f"One of {', '.join(LEVELS)}."))
    otlp_endpoint: str | None = field(
        default=None,
        metadata=_help(
            "OpenTelemetry collector for traces, as http://localhost:4317; unset: none."
        ),
    )
    drain_delay_s: float = field(
        default=0.0,
        metadata=_help("Seconds between unhealthy and refusing, for load balancers to notice."),
    )
    drain_timeout_s: float = field(
        default=30.0,
        metadata=_help("Seconds that running requests get after SIGTERM before they are aborted."),
    )
    slow_reader_timeout_s: float = field(
        default=60.0,
        metadata=_help("Seconds after which a stream whose reader takes nothing is aborted."),
    )
    max_message_mib: int = field(
        default=16,
        metadata=_help("Largest message taken, MiB; 16 is text for millions of tokens."),
    )
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range; the message names the setting.
        """
        _require_between("grpc_port", self.grpc_port, 0, 65535)
        if self.http_port is not None:
            _require_between("http_port", self.http_port, 0, 65535)
            if self.http_port == self.grpc_port != 0:
                raise ConfigError(
                    f"http_port and grpc_port are both {self.http_port}, but each needs its own; "
                    f"choose another --http-port"
                )
        _require_between("max_message_mib", self.max_message_mib, 1, _MAX_MESSAGE_MIB)
        _require_between("drain_delay_s", self.drain_delay_s, 0, math.inf)
        _require_between("drain_timeout_s", self.drain_timeout_s, 0, math.inf)
        _require_between("slow_reader_timeout_s", self.slow_reader_timeout_s, 0, math.inf)
        if self.slow_reader_timeout_s == 0:
            raise ConfigError("slow_reader_timeout_s is 0, wanted more: every reader would fail")
        if self.tool_parser not in (None, *TOOL_PARSERS):
            raise ConfigError(
                f"tool_parser is {self.tool_parser!r}, wanted one of {', '.join(TOOL_PARSERS)}"
            )
        if self.reasoning_parser not in REASONING_PARSERS:
            raise ConfigError(
                f"reasoning_parser is {self.reasoning_parser!r}, wanted one of "
                f"{', '.join(REASONING_PARSERS)}"
            )
        if self.http_port is None:
            self._refuse_gateway_settings()
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level is {self.log_level!r}, wanted one of {', '.join(LEVELS)}")
        if self.otlp_endpoint is not None and not _ENDPOINT.fullmatch(self.otlp_endpoint):
            raise ConfigError(
                f"otlp_endpoint is {self.otlp_endpoint!r}, wanted http://HOST:PORT, or https://"
                f"HOST:PORT for TLS, of OTLP over gRPC"
            )
        self._require_whole_tls()
        if not (self.tls_cert or self.allow_insecure_listen or is_loopback(self.host)):
            raise ConfigError(
                f"host {self.host!r} is beyond loopback, and without TLS everybody on the way can "
                f"read prompts, answers and keys: give --tls-cert and --tls-key, or listen on "
                f"127.0.0.1 behind a proxy with TLS, or give --allow-insecure-listen where the "
                f"network is trusted"
            )

    def _refuse_gateway_settings(self) -> None:
        """Refuse what only the HTTP gateway would read."""
        for name in ("tool_parser", "reasoning_parser"):
            if getattr(self, name) != Settings.__dataclass_fields__[name].default:
                raise ConfigError(f"{name} is set without http_port, whose gateway alone reads it")

    def _require_whole_tls(self) -> None:
        for one, other in (
            ("tls_cert", "tls_key"),
            ("tls_key", "tls_cert"),
            ("tls_client_ca", "tls_cert"),
        ):
            if getattr(self, one) is not None and getattr(self, other) is None:
                raise ConfigError(f"{one} is set without {other}; set both, or neither")

    def address(self, port: int) -> str:
        """Host and port in one, an IPv6 address in brackets."""
        host = bare_host(self.host)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @staticmethod
    def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
        """Bring flags, environment and defaults together.

        Raises:
            ConfigError: An unknown flag or variable, or a wrong value.
            SystemExit: `--help` or `--version` was asked for and printed.
        """
        _refuse_unknown_variables(environ)
        flags = vars(_parser().parse_args(argv))
        values: dict[str, OptionValue] = {}
        for option in list_options():
            if option.name in flags:
                source = option.name if option.is_required else option.flag
                values[option.name] = _converted(option, flags[option.name], source)
            elif option.env in environ:
                values[option.name] = option.convert(environ[option.env], option.env)
            elif option.is_required:
                raise ConfigError(
                    f"no {option.name}: give it as first argument or as {option.env}; "
                    f"om-serve --help lists everything"
                )
        return _build(values)


def _build(values: dict[str, OptionValue]) -> Settings:
    engine_names = {f.name for f in dataclasses.fields(EngineSettings)}
    engine = {name: value for name, value in values.items() if name in engine_names}
    rest = {name: value for name, value in values.items() if name not in engine_names}
    # Each value was converted by its field's type.
    return Settings(engine=EngineSettings(**engine), **rest)  # type: ignore[arg-type]


def _converted(option: Option, given: str | bool, source: str) -> OptionValue:
    return given if isinstance(given, bool) else option.convert(given, source)


def list_options() -> tuple[Option, ...]:
    """Every setting, in the order of `--help`."""
    return options_of(Settings, {}) + options_of(EngineSettings, ENGINE_HELP)


def list_flags() -> tuple[tuple[str, str, str, str], ...]:
    """(flag, variable, default, help) of every setting, as the README's table has them."""
    rows = []
    for option in list_options():
        flag = option.flag
        if option.is_required:
            flag = option.name.upper()
        elif option.kind is bool:
            flag = f"--[no-]{option.flag.removeprefix('--')}"
        rows.append((flag, option.env, option.default_text, option.help))
    return tuple(rows)


# How argparse words --flag=value where there are --flag and --no-flag.
_SWITCH_WITH_VALUE = re.compile(r"argument (--\S+)/(--no-\S+): ignored explicit argument")


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        if (switch := _SWITCH_WITH_VALUE.match(message)) is not None:
            on, off = switch.groups()
            message = f"{on} takes no value: give {on} alone, or {off}"
        raise ConfigError(f"{message}; om-serve --help lists all flags")


def _parser() -> CommandParser:
    parser = _Parser(
        prog="om-serve",
        description="Serve a bundle over gRPC. Each flag can be given as the variable beside it.",
        epilog="SIGTERM or SIGINT drains and ends with exit code 0; a second one ends at once. "
        "Exit code 2: a setting or the bundle is wrong; 1: anything else. "
        "`om-serve doctor` says what is wrong with this machine for Ascend cards, "
        "`om-serve keys` makes API keys.",
        # Otherwise a flag that comes later could change what an abbreviation means.
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"omserve {omserve_version()}")
    for option in list_options():
        text = f"{option.help} [{option.env}]"
        if option.default_text:
            text += f" (default: {option.default_text})"
        text = text.replace("%", "%%")
        if option.is_required:
            parser.add_argument(option.name, nargs="?", metavar=option.name.upper(), help=text)
        elif option.kind is bool:
            parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(option.flag, metavar=option.kind.__name__.upper(), help=text)
    return parser


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [option.env for option in list_options()]
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in (*known, CLIENT_KEY_VARIABLE):
            continue
        if _SERVICE_LINK.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "om-serve --help lists all variables"
        raise ConfigError(f"the environment has {name}, which is no setting; {hint}")


def _require_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        wanted = f"at least {least}" if math.isinf(most) else f"{least} to {most}"
        raise ConfigError(f"{name} is {value}, wanted {wanted}")


def bare_host(host: str) -> str:
    """A host without the brackets that an IPv6 address may have."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost may not be."""
    try:
        return ipaddress.ip_address(bare_host(host)).is_loopback
    except ValueError:
        return host == "localhost"
