"""ModelSizes: what the planner knows of a model, all of it from headers.

Owns the sizes that follow from others. Reading them is the command's, through the exporter.
"""

from __future__ import annotations

from dataclasses import dataclass

_FLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A model's sizes; weights and cache are float16.

    Attributes:
        num_parameters: All weights of the checkpoint, a tied head counted once.
        tied_head: Whether the output head is the embedding table.
        intermediate_size: Of the widest layer between two matrices, over all experts.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_parameters: int
    tied_head: bool

    @property
    def token_elements(self) -> int:
        """Key and value elements of one token, all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    @property
    def token_bytes(self) -> int:
        """The cache of one token."""
        return self.token_elements * _FLOAT16_BYTES

    @property
    def head_parameters(self) -> int:
        """The output head's matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """All that a token is multiplied with before the head; experts are computed densely."""
        tables = 1 if self.tied_head else 2
        return max(0, self.num_parameters - tables * self.head_parameters)

    @property
    def step_weight_bytes(self) -> int:
        """What one step reads of the weights: all but the embedding's rows."""
        return (self.layer_parameters + self.head_parameters) * _FLOAT16_BYTES

    @property
    def device_weight_bytes(self) -> int:
        """What the weights take on the device.

        A tied table counts twice: Gather wants it as it is, and the compiler keeps a matrix in
        the matrix unit's own layout (assumed, not measured).
        """
        copies = self.head_parameters if self.tied_head else 0
        return (self.num_parameters + copies) * _FLOAT16_BYTES
