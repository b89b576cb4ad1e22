"""`export-om plan`: buckets and a memory budget for a recorded traffic, before any build."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from pathlib import Path

from atc_pipeline.atc.jobs import Layout
from atc_pipeline.commands.arguments import add_number, add_traceback, missing_libraries
from atc_pipeline.commands.checkpoint_headers import (
    CheckpointHeaders,
    HeadersWanted,
    open_headers,
)
from atc_pipeline.commands.printed_warnings import print_warnings
from atc_pipeline.plan.budget import DEFAULT_RESERVE_SHARE
from atc_pipeline.plan.build_time import DEFAULT_NODE_S
from atc_pipeline.plan.lengths import read_lengths
from atc_pipeline.plan.planner import Plan, PlanRequest, make_plan
from atc_pipeline.plan.report import plan_json, plan_text
from atc_pipeline.soc import DEFAULT_SOC, SOCS, Soc, find_soc
from omruntime.command_parser import Commands
from omruntime.errors import ConfigError

_DEFAULT_GEARS = 8
_DEFAULT_CHUNK = 512
# More digits than any memory has bytes would be no number in the end.
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(KiB|MiB|GiB|KB|MB|GB|B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan", help="choose buckets for a traffic, and see what fits", allow_abbrev=False
    )
    parser.set_defaults(command=_plan)
    add = parser.add_argument
    add("checkpoint", help="folder with safetensors, GGUF file or Hub id; no weights are loaded")
    add(
        "--lengths",
        type=Path,
        required=True,
        metavar="FILE",
        help=".json: conversations, counted without the chat template; "
        ".csv: prompt_tokens,output_tokens; else a log of om-serve",
    )
    # --target is the word of all other subcommands.
    add(
        "--soc",
        "--target",
        default=DEFAULT_SOC,
        help=f"one of {', '.join(SOCS)} (default: {DEFAULT_SOC})",
    )
    add("--memory", metavar="SIZE", help="of the device, such as 24GiB (default: the chip file's)")
    add("--reserve", metavar="SIZE", help="left free (default: 5 %% of the memory)")
    add("--layout", choices=[x.value for x in Layout], default=Layout.PER_PHASE.value)
    add("--separate-weights", action="store_true", help="OMs do not share weights on the device")
    add("--block-size", type=int, metavar="N", help="tokens per KV block (default: the profile's)")
    add("--max-model-len", type=int, metavar="N", help="tokens per sequence (default: as build)")
    add("--max-num-seqs", type=int, metavar="N", help="sequences at once (default: as build)")
    add_number(parser, "--max-gears", _DEFAULT_GEARS, "buckets of an OM; layout static: of all")
    add_number(parser, "--max-chunk-tokens", _DEFAULT_CHUNK, "tokens of a prefill chunk at most")
    add(
        "--concurrency",
        metavar="X[,X...]",
        help="mean requests in flight, in quiet and busy times (default: 1 and half the sequences)",
    )
    add("--build-budget", type=float, metavar="MINUTES", help="longest estimated build")
    add(
        "--seconds-per-node",
        type=float,
        default=DEFAULT_NODE_S,
        metavar="S",
        help=f"of the build estimate, for each node and gear (default: {DEFAULT_NODE_S}, a guess)",
    )
    add(
        "--chars-per-token",
        type=float,
        metavar="X",
        help="count tokens of conversations roughly, without the checkpoint's tokenizer",
    )
    add("--output", type=Path, metavar="FILE", help="write the buckets for build --buckets")
    add("--plot", type=Path, metavar="FILE", help="write a picture (PNG)")
    add("--json", action="store_true", help="as one JSON object")
    add_traceback(parser)


def _plan(options: argparse.Namespace) -> int:
    soc = find_soc(options.soc)
    memory_bytes = _memory_bytes(options.memory, soc)
    wanted = HeadersWanted(
        checkpoint=options.checkpoint,
        target=soc.name,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        chars_per_token=options.chars_per_token,
    )
    with open_headers(wanted) as source:
        lengths = read_lengths(options.lengths, source.count_tokens)
        request = _request(options, soc, memory_bytes, source)
        default = source.default_buckets()
        plan = make_plan(source.sizes, lengths, default, request)
        print_warnings(source.warnings)
    _write(options, plan)
    sys.stdout.write(plan_json(plan) if options.json else plan_text(plan))
    if options.output is not None and not options.json:
        print(f"next: {_build_command(options, plan)}")
    return 0


def _build_command(options: argparse.Namespace, plan: Plan) -> str:
    """The build that the buckets were planned for; other limits would not be covered."""
    request = plan.request
    words = ["export-om", "build", options.checkpoint, "--target", request.soc.name]
    words += ["--layout", request.layout.value, "--buckets", str(options.output)]
    words += ["--max-model-len", str(request.max_model_len)]
    words += ["--max-num-seqs", str(request.max_num_seqs), "--output", "BUNDLE"]
    if options.separate_weights:
        words.append("--separate-weights")
    return shlex.join(words)


def _request(
    options: argparse.Namespace, soc: Soc, memory_bytes: int, source: CheckpointHeaders
) -> PlanRequest:
    reserve = options.reserve
    budget = options.build_budget
    if budget is not None and not math.isfinite(budget):
        raise ConfigError(f"--build-budget is {budget}, wanted minutes above 0")
    return PlanRequest(
        soc=soc,
        memory_bytes=memory_bytes,
        reserve_bytes=round(memory_bytes * DEFAULT_RESERVE_SHARE)
        if reserve is None
        else parse_size("--reserve", reserve),
        layout=Layout(options.layout),
        block_size=source.block_size,
        max_model_len=source.max_model_len,
        max_num_seqs=source.max_num_seqs,
        max_gears=options.max_gears,
        max_chunk_tokens=options.max_chunk_tokens,
        concurrency=_concurrency(options.concurrency, source.max_num_seqs),
        build_budget_s=None if budget is None else budget * 60,
        node_s=options.seconds_per_node,
        separate_weights=options.separate_weights,
    )


def _concurrency(given: str | None, max_num_seqs: int) -> tuple[float, ...]:
    if given is None:
        return (1.0, max(1.0, max_num_seqs / 2))
    try:
        return tuple(float(part) for part in given.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--concurrency is {given!r}, wanted numbers with commas between them, such as 1,16"
        ) from error


def _memory_bytes(given: str | None, soc: Soc) -> int:
    if given is not None:
        return parse_size("--memory", given)
    if not soc.memory_bytes:
        raise ConfigError(
            f"boards with {soc.name} have different memories; say --memory, such as --memory 8GiB"
        )
    return soc.memory_bytes


def parse_size(flag: str, text: str) -> int:
    """`24GiB` in bytes.

    Raises:
        ConfigError: It is not a number with a unit.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{flag} is {text!r}, wanted a number with a unit ({', '.join(_UNITS)}), such as 24GiB"
        )
    return int(float(found[1]) * _UNITS[found[2]])


def _write(options: argparse.Namespace, plan: Plan) -> None:
    if options.plot is not None:
        try:
            from atc_pipeline.plan.plot import draw_plan
        except ImportError as error:
            raise missing_libraries(error) from error
        draw_plan(plan, options.plot)
    if options.output is not None:
        try:
            options.output.write_text(plan.gears.to_json(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the buckets to {options.output}: {error}") from error
