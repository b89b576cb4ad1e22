"""The operator table, against what the sources are known to say."""

from __future__ import annotations

import pytest

from atc_pipeline.op_table import load_operator_table

TABLE = load_operator_table()


@pytest.mark.parametrize(
    ("domain", "opset", "op_type", "registered"),
    [
        ("", 18, "MatMul", True),
        ("ai.onnx", 18, "MatMul", True),
        ("", 19, "MatMul", False),
        ("", 16, "LayerNormalization", False),
        ("", 17, "LayerNormalization", True),
        ("npu", 1, "NPURmsNorm", True),
        ("npu", 2, "NPURmsNorm", False),
        ("", 18, "NPURotaryMul", True),
        ("", 17, "NPUPromptFlashAttention", False),
        ("com.microsoft", 1, "FusedMatMul", False),
        ("", 18, "Constant", True),
        ("npu", 1, "Constant", False),
        ("", 18, "If", True),
        ("", 18, "Loop", False),
        ("", 18, "Scan", False),
    ],
)
def test_key_rule_is_the_declared_opset(
    domain: str, opset: int, op_type: str, registered: bool
) -> None:
    assert TABLE.is_registered(domain, opset, op_type) is registered


def test_every_operator_has_opsets_a_target_and_a_source() -> None:
    found = [
        operator
        for domain in TABLE.domains
        for name in ("MatMul", "NPURmsNorm", "NMSRotated", "Gather")
        if (operator := TABLE.find(domain, name)) is not None
    ]
    assert len(found) >= 5
    for operator in found:
        assert operator.opsets
        assert operator.ascend_ops
        assert operator.source


def test_opset_range_reads_well() -> None:
    for name, text in (
        ("MatMul", "8-18"),
        ("NPUPromptFlashAttention", "11-16, 19"),
        ("MaxUnpool", "9, 11-18"),
    ):
        operator = TABLE.find("", name)
        assert operator is not None
        assert operator.opset_range == text


def test_names_the_domain_that_has_an_operator() -> None:
    assert TABLE.other_domains("", "NPUFusedAttentionScore") == ("npu",)
    assert TABLE.other_domains("com.microsoft", "MatMul") == ("ai.onnx",)


def test_engine_of_a_matmul_is_float16_only() -> None:
    engine = TABLE.engine("BatchMatMulV2")
    assert engine is not None
    assert engine.ai_cpu == "float32 only"
    assert TABLE.engine("Nothing") is None
    assert TABLE.lacks_plugin("SwiGlu")


def test_release_differences_are_kept() -> None:
    scatter = TABLE.find("", "ScatterND")
    gemm = TABLE.find("", "Gemm")
    assert scatter is not None
    assert gemm is not None
    assert 9 in scatter.opsets
    assert 9 not in scatter.older_opsets["v9.1.0"]
    assert gemm.closed_before
    assert "v8.5.0" in gemm.not_open_in
