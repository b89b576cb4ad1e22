"""A scripted model whose logprobs tell which token and position they belong to; and its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omruntime.manifest import SamplingDefaults
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.step import ScoredToken, TokenLogprobs
from server.generate import TextGenerator
from tests.server.scripted_engine import Script, ScriptedEngine, last, model_facts, one_by_one
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of
from tests.server.wire_fakes import FakeServer

TOKENIZER = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)
ANSWER = TOKENIZER.encode_text("the")
SLICE = 32


def logprob_of(token_id: int, position: int) -> float:
    return -float(position) - token_id / 1024


def rank_of(token_id: int) -> int:
    """Tokens with even ids are the likeliest."""
    return 1 + token_id % 2


def scores_of(request: Request) -> list[ScoredToken]:
    """What the engine says of a prompt that is to be scored."""
    k = request.params.prompt_logprobs
    if k is None:
        return []
    top = tuple((100 + i, -1.5 - i) for i in range(k))
    prompt = request.prompt_token_ids
    return [
        ScoredToken(TokenLogprobs(logprob_of(prompt[p], p), top), rank_of(prompt[p]))
        for p in range(max(1, request.score_from), len(prompt))
    ]


def scored(request: Request) -> list[TokenDelta]:
    """Slices of scores, then the answer "the" and an end token if one is wanted."""
    scores = scores_of(request)
    slices = [tuple(scores[i : i + SLICE]) for i in range(0, len(scores), SLICE)]
    deltas = [TokenDelta((), prompt_logprobs=each) for each in slices]
    if request.params.max_new_tokens == 0:
        return [*deltas, last(FinishReason.LENGTH)]
    return [*deltas, *one_by_one([*ANSWER, 2], FinishReason.STOP)]


@dataclass
class Scored:
    """What a test may look at."""

    server: FakeServer
    engine: ScriptedEngine

    @property
    def target(self) -> str:
        return self.server.target


@contextmanager
def scored_server(script: Script = scored, max_model_len: int = 512) -> Iterator[Scored]:
    """The gRPC server over the text layer and a scripted engine, for the length of the block."""
    engine = ScriptedEngine(script)
    model = model_facts(TOKENIZER.vocab_size, SamplingDefaults(temperature=0.0))
    generator = TextGenerator(engine, TOKENIZER, model, max_model_len)
    with FakeServer(loaded=False) as server:
        server.call(lambda: server.lifecycle.begin_serving(generator))  # type: ignore[arg-type]
        yield Scored(server, engine)
