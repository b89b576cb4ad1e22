"""BL-10: what float16 cannot hold is named and refused before it becomes "!!!!!!"."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from export.float16_range import (
    RangeReport,
    measure_weights,
    measured_activations,
    require_activations_fit,
    require_weights_fit,
)
from omruntime.errors import ExportError
from tests.export.tiny import export_tiny, save_checkpoint, tiny_model

TARGET = "Ascend310P3"
DOWN = "model.layers.1.mlp.down_proj"


def overflowing_model() -> PreTrainedModel:
    """One row of layer 1's down projection gives more than 65504; each weight is in range."""
    model = tiny_model("qwen2")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight *= 1000
        model.model.layers[1].mlp.down_proj.weight[3] *= 1e5
    return model


def test_every_weight_is_measured() -> None:
    model = tiny_model("llama")
    weight = model.model.layers[1].mlp.down_proj.weight
    with torch.no_grad():
        weight[0, :3] = torch.tensor([70000.0, -1e6, 65504.0])
        weight[1, :4] = torch.tensor([1e-9, -1e-8, 0.0, 6e-8])
    ranges = {r.name: r for r in measure_weights(model)}
    assert len(ranges) == len(list(model.named_parameters()))
    found = ranges[f"{DOWN}.weight"]
    assert (found.max_abs, found.num_overflowing, found.num_flushed) == (1e6, 2, 2)
    assert ranges["lm_head.weight"].num_overflowing == 0


def test_weights_beyond_the_range_are_refused_by_name() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = 70000.0
    report = RangeReport(measure_weights(model))
    with pytest.raises(ExportError, match=rf"{DOWN}\.weight \(1 value.*--allow-fp16-clipping"):
        require_weights_fit(report, allow_clipping=False)
    require_weights_fit(report, allow_clipping=True)


def test_activations_beyond_the_range_are_refused_by_module() -> None:
    model, report = overflowing_model(), RangeReport()
    with measured_activations(model, report), torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))
    assert next(iter(report.overflowing_activations)) == f"{DOWN} output"
    with pytest.raises(ExportError, match=rf"over the parity sequence: {DOWN} output"):
        require_activations_fit(report, allow_clipping=False)
    require_activations_fit(report, allow_clipping=True)
    before = dict(report.activations)
    with torch.no_grad():
        model(input_ids=torch.tensor([[9] * 20]))
    assert report.activations == before, "the hooks are gone"


def test_a_checkpoint_that_overflows_is_refused_and_can_be_forced(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(overflowing_model(), tmp_path / "checkpoint")
    small = {"target": TARGET, "max_model_len": 24, "max_num_seqs": 2, "block_size": 8}
    with pytest.raises(ExportError, match=f"{DOWN} output"):
        export_tiny(checkpoint, tmp_path / "refused", **small)
    report = json.loads((tmp_path / "refused/reports/range.json").read_text())
    assert report["activations"][f"{DOWN} output"] > report["largest"] == 65504.0
    result = export_tiny(checkpoint, tmp_path / "forced", allow_clipping=True, **small)
    assert any(f"pass float16's range at {DOWN} output" in line for line in result.warnings)
    parity = json.loads((tmp_path / "forced/reports/parity.json").read_text())
    assert parity["num_overflowed_rows"] > 0
    assert np.isfinite(parity["tolerance"])
    assert "reports/range.json" in result.files


def test_clipped_weights_are_clipped_and_named(tmp_path: Path) -> None:
    """A weight that no token reaches, so that clipping it changes nothing else."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[299] = 1e6
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    small = {"target": TARGET, "max_model_len": 24, "max_num_seqs": 2, "block_size": 8}
    result = export_tiny(checkpoint, tmp_path / "out", allow_clipping=True, **small)
    assert "clipped to float16's range: model.embed_tokens.weight" in result.warnings
