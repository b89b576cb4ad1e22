"""A tiny configuration of every proven architecture and setting."""

from __future__ import annotations

from dataclasses import dataclass, field

ROPE = {"rope_theta": 10000.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = ROPE | {
    "rope_type": "longrope",
    "original_max_position_embeddings": 128,
    "short_factor": [1.5] * 8,
    "long_factor": [2.0] * 8,
}
# Phi-3 names the switch at the top level, and that one counts.
LONGROPE_CONFIG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128}
DYNAMIC = ROPE | {"rope_type": "dynamic", "factor": 2.0}
SLIDING = {"head_dim": 24, "sliding_window": 20}
MOE = {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}


@dataclass(frozen=True)
class Case:
    model_type: str
    name: str = ""
    config: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.model_type}-{self.name}".strip("-")


CASES = (
    Case("llama"),
    Case("llama", "tied", {"tie_word_embeddings": True}),
    Case("llama", "one-kv-head-each", {"num_key_value_heads": 4}),
    # BL-03: bias vectors of llama variants.
    Case("llama", "biases", {"attention_bias": True, "mlp_bias": True}),
    Case("llama", "llama3-rope", {"rope_parameters": LLAMA3}),
    Case("llama", "dynamic-rope", {"rope_parameters": DYNAMIC}),
    # BL-04: the window counts by layer_types, not by sliding_window.
    Case("qwen2", "window-off", {"sliding_window": 8}),
    Case(
        "qwen2",
        "window-half",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    Case(
        "qwen2",
        "window-none",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
    # BL-01: head_dim is not hidden / heads.
    Case("qwen3", "head-dim", {"head_dim": 24}),
    Case("mistral", "", {"sliding_window": 20}),
    Case("gemma2", "", SLIDING),
    Case("gemma3_text", "", SLIDING),
    Case("phi3"),
    Case("phi3", "longrope", LONGROPE_CONFIG),
    Case("glm", "", {"head_dim": 16}),
    Case("glm4", "", {"head_dim": 16}),
    Case("granite", "", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
    Case("olmo2"),
    Case("starcoder2"),
    Case("gpt2"),
    Case("qwen3_moe", "", MOE),
    Case("mixtral", "", {"num_local_experts": 4, "sliding_window": None}),
)
