"""omserve at each of its layers: over gRPC, text in process, token ids in process."""

from __future__ import annotations

import asyncio
from time import perf_counter

from bench.prompts import NUM_NEW_TOKENS, Workload
from omruntime.llm import LLM as TokenLLM
from omruntime.sampling_params import SamplingParams
from server.client import AsyncClient
from server.llm import LLM as TextLLM

PARAMS = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW_TOKENS, ignore_eos=True)


async def run_over_grpc(client: AsyncClient, work: Workload) -> float:
    """Stream the workload's answers with `concurrency` workers; output tokens per second."""
    waiting = iter(work.prompts)
    num_tokens = 0

    async def worker() -> None:
        nonlocal num_tokens
        for prompt in waiting:
            async for delta in client.stream(prompt, PARAMS):
                num_tokens += len(delta.token_ids)

    start = perf_counter()
    await asyncio.gather(*(worker() for _ in range(work.concurrency)))
    return num_tokens / (perf_counter() - start)


def run_tokens(llm: TokenLLM, work: Workload) -> float:
    """Generate in process, token ids only; output tokens per second."""
    start = perf_counter()
    outputs = llm.generate(work.prompts, PARAMS, progress=False)
    return sum(len(o.token_ids) for o in outputs) / (perf_counter() - start)


def run_text(llm: TextLLM, work: Workload) -> float:
    """Generate in process through tokenizer and detokenizer; output tokens per second."""
    start = perf_counter()
    outputs = llm.generate(work.prompts, PARAMS, progress=False)
    num_tokens = sum(len(answer.token_ids) for output in outputs for answer in output.answers)
    return num_tokens / (perf_counter() - start)
