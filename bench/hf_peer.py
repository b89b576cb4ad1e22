"""The reference peer: Hugging Face `generate` in float32, static batches, sdpa attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM

from bench.prompts import NUM_NEW_TOKENS, Workload


class HfPeer:
    """A GGUF checkpoint in transformers on a fixed number of threads."""

    def __init__(self, checkpoint: Path, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._model = AutoModelForCausalLM.from_pretrained(
            str(checkpoint.parent),
            gguf_file=checkpoint.name,
            dtype=torch.float32,
            attn_implementation="sdpa",
        ).eval()

    def run(self, work: Workload) -> float:
        """Answer the workload in batches of its concurrency; returns output tokens per second."""
        batches = [
            work.prompts[i : i + work.concurrency]
            for i in range(0, len(work.prompts), work.concurrency)
        ]
        start = perf_counter()
        num_tokens = sum(self._generate(batch) for batch in batches)
        return num_tokens / (perf_counter() - start)

    def _generate(self, prompts: Sequence[Sequence[int]]) -> int:
        longest = max(len(p) for p in prompts)
        padded = [[0] * (longest - len(p)) + list(p) for p in prompts]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        output = self._model.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            max_new_tokens=NUM_NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
        return int(output[:, longest:].numel())
