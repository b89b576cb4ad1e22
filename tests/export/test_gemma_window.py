"""BL-04: a real checkpoint whose sliding window of 512 is passed, chunk by chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.checkpoint import load_model, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.facts import step_shape
from export.graphs import StepGraph
from export.hf_reference import teacher_forced
from export.paged_runner import PagedRunner, Row
from export.session import open_session
from export.spec import ExportSpec
from export.trace import write_step_graph
from omruntime.buckets import Bucket, Phase

# Prompts of 511, 512, 513 and 600 tokens end in these chunks.
CHUNKS = (256, 255, 1, 1, 87)
ENDS = (511, 512, 513, 600)


def test_prompts_around_the_window_equal_transformers(gemma3_gguf: Path, tmp_path: Path) -> None:
    spec = ExportSpec(str(gemma3_gguf))
    with open_checkpoint(find_checkpoint(spec.checkpoint), spec) as checkpoint:
        model = load_model(checkpoint, spec)
    assert model.config.layer_types.count("full_attention") == 3
    assert model.config.sliding_window == 512
    shape = step_shape(model, spec.tokens_per_block)
    graph = StepGraph(model, shape)
    write_step_graph(graph, tmp_path / "step.onnx", tmp_path / "step.weights")
    graph.release()

    token_ids = tuple(np.random.default_rng(5).integers(0, 262144, ENDS[-1]).tolist())
    reference = teacher_forced(model, token_ids, [end - 1 for end in ENDS])
    runner = PagedRunner(open_session(tmp_path / "step.onnx", 2), shape, [len(token_ids)])
    past = 0
    for tokens in CHUNKS:
        bucket = Bucket(Phase.PREFILL, 1, 16 if tokens == 1 else 256, 40)
        row = Row(0, token_ids[past : past + tokens], past)
        result = runner.run(bucket, [row], append=True)
        past += tokens
        if past in ENDS:
            wanted = reference.logits[past - 1]
            tolerance = 2.5e-5 * float(np.abs(wanted).max())
            assert float(np.abs(result.logits[0] - wanted).max()) <= tolerance
            assert result.logits[0].argmax() == wanted.argmax()
    assert past == ENDS[-1]
