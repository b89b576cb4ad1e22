"""The flags of `om-client bench`, in the names that vLLM's and SGLang's benchmarks have."""

from __future__ import annotations

import argparse
from pathlib import Path

BACKENDS = ("grpc", "openai", "openai-chat", "in-process")
KINDS = ("ids", "text")


def add_bench_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; those of the connection come from `call_flags`."""
    _add_target_flags(parser)
    _add_load_flags(parser)
    _add_request_flags(parser)
    _add_synthetic_flags(parser)
    _add_report_flags(parser)


def _add_target_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        default="grpc",
        help="grpc: omserve at --target; openai, openai-chat: the completions or the chat route of "
        "any compatible server at --base-url; in-process: --bundle in this process, without any "
        "wire (default: %(default)s)",
    )
    group.add_argument(
        "--base-url", metavar="URL", help="of openai and openai-chat, such as http://localhost:8000"
    )
    group.add_argument("--bundle", type=Path, metavar="DIR", help="of in-process")
    group.add_argument("--device", help="of in-process (default: cpu)")
    group.add_argument("--model", help="served name; default: the served, or the first listed one")
    group.add_argument("--timeout-s", type=float, metavar="X", help="of a request; default: none")


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "load",
        "Without --request-rate a closed loop: --max-concurrency users, each of whom sends the "
        "next request when the answer before is complete. With it an open loop: requests arrive "
        "at random, however slow the answers are, and latencies count from the scheduled arrival.",
    )
    group.add_argument(
        "--request-rate",
        type=float,
        metavar="R",
        help="mean arrivals a second, of conversations where --turns is above 1; inf: all at once",
    )
    group.add_argument(
        "--burstiness",
        type=float,
        metavar="X",
        help="shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, less "
        "comes in bursts, more comes evenly (default: 1)",
    )
    group.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="closed loop: the users (default: 1, who sees an idle server); open loop: most "
        "requests in flight, of which those that are due wait their turn (default: no limit)",
    )
    group.add_argument(
        "--num-prompts",
        type=int,
        metavar="N",
        help="requests, or conversations where --turns is above 1 (default: 100, the fewest of "
        "which a p99 is one; with --dataset-path all lines)",
    )
    group.add_argument(
        "--num-warmups",
        type=int,
        default=1,
        metavar="N",
        help="requests before the load that count for nothing; the first opens the connection "
        "(default: %(default)s)",
    )


def _add_request_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--seed", type=int, default=0, help="equal seeds, equal load (default: 0)")
    group.add_argument(
        "--temperature", type=float, default=0.0, help="0 takes the best token (default: 0)"
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="answers go on to their length; no part of OpenAI's protocol, though vLLM, SGLang and "
        "omserve know it (default: yes for made-up prompts, no with --dataset-path)",
    )
    group.add_argument(
        "--dataset-path",
        type=Path,
        metavar="FILE",
        help="JSON lines instead of made-up prompts: objects with one of prompt (text), "
        "prompt_ids, input_len (tokens, made up), and output_len (tokens), and maybe arrival_s; or "
        "ShareGPT's conversations, lists of {from, value}. Arrivals of the file make an open loop",
    )
    group.add_argument(
        "--sharegpt-output-len",
        type=int,
        metavar="N",
        help="tokens of ShareGPT's answers; default: as the server counts the file's, which over "
        "HTTP it cannot",
    )


def _add_synthetic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("made-up prompts")
    group.add_argument(
        "--random-input-len",
        type=int,
        metavar="N",
        help="tokens that a request adds; with --lognormal-sigma their median (default: 128)",
    )
    group.add_argument(
        "--random-output-len",
        type=int,
        metavar="N",
        help="tokens of an answer, likewise (default: 64)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        metavar="R",
        help="uniform lengths from (1 - R) to (1 + R) times the two; default: fixed lengths",
    )
    group.add_argument(
        "--lognormal-sigma",
        type=float,
        metavar="S",
        help="lognormal lengths, cut to what the model takes; 1 is like people's conversations",
    )
    group.add_argument(
        "--prompt-kind",
        choices=KINDS,
        help="ids: random token ids, of exact length; text: random words, about one token each "
        "(default: ids, but text over HTTP)",
    )
    group.add_argument(
        "--vocab-size", type=int, metavar="N", help="of ids over HTTP, where nothing tells it"
    )
    group.add_argument(
        "--random-prefix-len",
        type=int,
        metavar="N",
        help="tokens of a shared beginning, before those of --random-input-len (default: 0)",
    )
    group.add_argument(
        "--num-prefixes", type=int, metavar="N", help="different shared beginnings (default: 1)"
    )
    group.add_argument(
        "--prefix-fraction",
        type=float,
        metavar="X",
        help="share of the conversations that have one (default: 1)",
    )
    group.add_argument(
        "--turns",
        type=int,
        metavar="N",
        help="requests of a conversation; each sends the turns and answers before it again "
        "(default: 1)",
    )
    group.add_argument(
        "--think-time-s",
        type=float,
        metavar="X",
        help="mean time from an answer to the next turn, exponential (default: 0)",
    )


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count requests that met targets in milliseconds: ttft, tpot, e2el; such as "
        "ttft:200 tpot:50",
    )
    group.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write one object with all figures and requests; without FILE, or with -, to standard "
        "output instead of the report",
    )
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with curves; it needs no network"
    )
    group.add_argument(
        "--allow-failures",
        action="store_true",
        help="exit with 0 though requests were rejected or failed; default: 1",
    )
