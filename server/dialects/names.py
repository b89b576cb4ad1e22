"""The foreign services' names, for whoever must know them without their code."""

from __future__ import annotations

DIALECT_NAMES = ("inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine")
"""Full names, as in paths."""
