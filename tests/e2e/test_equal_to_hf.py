"""SmolLM2's answers equal Hugging Face's token by token, however they are scheduled."""

from __future__ import annotations

from pathlib import Path

import pytest

from omruntime import LLM, EngineSettings, SamplingParams
from tests.e2e.hf_reference import NUM_NEW_TOKENS, Reference, require_equal
from tests.omruntime.native.kernels import needs_library

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW_TOKENS)

# Room for every chat; buckets beyond it need no warm-up.
LONGEST = 128

SCHEDULES = {
    "alone, no prefix cache": EngineSettings(
        max_model_len=LONGEST, max_num_seqs=1, enable_prefix_cache=False
    ),
    "sixteen at once": EngineSettings(max_model_len=LONGEST, max_num_seqs=16),
    "smallest chunk": EngineSettings(max_model_len=LONGEST, max_num_seqs=16, max_chunk_tokens=2),
    "preempted": EngineSettings(max_model_len=LONGEST, max_num_seqs=16, num_blocks=40),
    "native kernels": EngineSettings(max_model_len=LONGEST, max_num_seqs=16, device="native"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=needs_library if "native" in n else ()) for n in SCHEDULES],
)
def test_twenty_chats_equal_hf(
    smollm2_bundle: Path, smollm2_references: list[Reference], name: str
) -> None:
    prompts = [reference.prompt for reference in smollm2_references]
    with LLM(smollm2_bundle, SCHEDULES[name]) as llm:
        outputs = llm.generate(prompts, GREEDY, progress=False)
        load = llm.load()
    equal = [
        require_equal(output.token_ids, reference)
        for output, reference in zip(outputs, smollm2_references, strict=True)
    ]
    # Near ties are the documented exception; more than two of twenty would be something else.
    assert equal.count(False) <= 2
    assert load.num_referenced_blocks == 0
    assert (load.num_preemptions > 0) == (name == "preempted")
    assert (load.num_prefix_hit_tokens > 0) == ("no prefix cache" not in name)
