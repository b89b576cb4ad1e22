"""Traces: when requests arrive, how long their prompts are and how long their answers get."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from omruntime.errors import ConfigError
from omruntime.traffic.arrivals import arrival_times
from omruntime.traffic.lengths import Lognormal

# Means of 161 and 338 tokens, as of ShareGPT's conversations, in a lognormal shape of sigma 1.
# Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with
# PagedAttention (SOSP 2023), section 6.1, Workloads.
MEDIAN_PROMPT, MEDIAN_OUTPUT, SIGMA = 98, 205, 1.0


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request; `arrival_s` counts from the start of the trace."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int


def synthetic_trace(num_requests: int, max_model_len: int, seed: int) -> list[TracedRequest]:
    """Lognormal lengths, Poisson arrivals at one request a second; equal seeds, equal traces."""
    draw = random.Random(seed)  # noqa: S311 - no secret, and it must be repeatable
    requests, arrivals = [], arrival_times(draw, 1.0)
    for _ in range(num_requests):
        arrival_s = next(arrivals)
        prompt = Lognormal(MEDIAN_PROMPT, SIGMA, max_model_len // 2).draw(draw)
        output = Lognormal(MEDIAN_OUTPUT, SIGMA, max_model_len - prompt).draw(draw)
        requests.append(TracedRequest(arrival_s, prompt, output))
    return requests


def at_rate(trace: list[TracedRequest], requests_a_second: float) -> list[TracedRequest]:
    """The same trace, stretched to a mean rate of arrivals."""
    factor = len(trace) / max(r.arrival_s for r in trace) / requests_a_second
    return [replace(r, arrival_s=r.arrival_s * factor) for r in trace]


def read_trace(path: Path, max_model_len: int) -> list[TracedRequest]:
    """Read a CSV file with the columns arrival (seconds), prompt and output (tokens).

    Raises:
        ConfigError: A row is not of this form, or longer than the model takes.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            trace = list(_rows(csv.DictReader(file), max_model_len))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    if len(trace) < 2:
        raise ConfigError(f"{path} has {len(trace)} request(s), wanted at least 2")
    if all(request.arrival_s == 0 for request in trace):
        raise ConfigError(f"{path} has arrivals at 0 alone, which have no rate; wanted one above 0")
    return sorted(trace, key=lambda r: r.arrival_s)


def _rows(reader: csv.DictReader[str], max_model_len: int) -> Iterator[TracedRequest]:
    for number, row in enumerate(reader, 2):
        try:
            request = TracedRequest(float(row["arrival"]), int(row["prompt"]), int(row["output"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"line {number} of the trace is {row}, wanted columns arrival, prompt, output"
            ) from error
        length = request.num_prompt_tokens + request.num_output_tokens
        is_right = 0 <= request.arrival_s < float("inf") and request.num_prompt_tokens > 0
        if not is_right or request.num_output_tokens < 1 or length > max_model_len:
            raise ConfigError(
                f"line {number} of the trace: arrival {request.arrival_s}, {length} tokens; wanted "
                f"a time from 0 on, at least one token each, and at most {max_model_len} together"
            )
        yield request
