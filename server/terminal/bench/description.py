"""What a report says of a run in words: how the load came, and what to know of the figures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

from omruntime.traffic.quantiles import quantile
from server.terminal.bench.metrics import Figures
from server.terminal.bench.plan import LoadShape
from server.terminal.bench.targets.opening import ask_options_of
from server.terminal.bench.workload import Conversation


def shown_of(
    arguments: argparse.Namespace, load: LoadShape, conversations: Sequence[Conversation]
) -> dict[str, str]:
    """The load, and what was sent."""
    return {"load": _load(load, conversations), "sent": _sent(arguments, load, conversations)}


def _load(load: LoadShape, conversations: Sequence[Conversation]) -> str:
    users = load.places_for(conversations)
    if conversations[0].arrival_s is None:
        return f"closed loop, {users} user{'s' if users != 1 else ''}"
    limit = "" if users is None else f", at most {users} in flight"
    if load.request_rate is None:
        return f"open loop, arrivals of the file{limit}"
    if math.isinf(load.request_rate):
        return f"open loop, all at once{limit}"
    kind = "Poisson" if load.burstiness == 1 else f"gamma, burstiness {load.burstiness:g}"
    return f"open loop, {load.request_rate:g} arrivals/s ({kind}){limit}"


def _sent(
    arguments: argparse.Namespace, load: LoadShape, conversations: Sequence[Conversation]
) -> str:
    turns = [turn for conversation in conversations for turn in conversation.turns]
    text = f"{len(turns)} requests"
    if len(turns) > len(conversations):
        text += f" in {len(conversations)} conversations"
    lengths = [t.num_prompt_tokens for t in turns if t.num_prompt_tokens is not None]
    if lengths:
        # A later turn sends what came before it again.
        what = "turns that add" if len(turns) > len(conversations) else "prompts of"
        text += f", {what} {_range(lengths)} tokens"
    text += f", answers of {_range([t.num_output_tokens for t in turns])}"
    return f"{text}; seed {load.seed}, temperature {arguments.temperature:g}"


def _range(lengths: Sequence[int]) -> str:
    least, most = min(lengths), max(lengths)
    if least == most:
        return str(least)
    return f"{least} to {most} (median {quantile(sorted(lengths), 0.5)})"


def notes_of(arguments: argparse.Namespace, figures: Figures) -> Iterator[str]:
    """What a reader must know."""
    if figures.num_short:
        text = f"{figures.num_short} of {figures.num_ok} answers are shorter than they could be"
        ignores = ask_options_of(arguments).ignore_eos
        yield f"{text}; the server may not know ignore_eos" if ignores else text
    if figures.num_uncounted:
        yield (
            f"the server gave no token counts (usage) of {figures.num_uncounted} answers: an event "
            f"counts as one token there, and prompts are not counted"
        )
    if figures.tokens_an_event > 1.5:
        yield (
            "events brought several tokens each, so ITL is the time between events; TPOT is that "
            "between tokens"
        )
    if arguments.backend == "in-process":
        yield "engine and load share this process: the client's CPU and lag are the engine's too"
