"""How long a build may take on a machine with CANN: an estimate, never measured.

The model: each OM has a fixed part, and each gear compiles the whole graph once more, so the time
is

    OMs x FIXED_S + gears x nodes x NODE_S

Source: hicann/ge docs/zh/user_guides/atc_shape_configuration_guide.md (N gears are about N times
the work). The two constants are guesses; `--seconds-per-node` replaces the second one after the
first real build.
"""

from __future__ import annotations

import math

FIXED_S = 60.0
DEFAULT_NODE_S = 0.05
# Of a traced step graph: a decoder layer, and what stands before and after all layers.
_NODES_PER_LAYER = 55
_OTHER_NODES = 60


def estimated_nodes(num_layers: int) -> int:
    """Nodes of a step graph of so many layers."""
    return _OTHER_NODES + _NODES_PER_LAYER * num_layers


def build_seconds(num_oms: int, gears_s: float) -> float:
    """The estimate, one run of atc after the other.

    Args:
        gears_s: Of all gears together.
    """
    return num_oms * FIXED_S + gears_s


def gears_within(budget_s: float, num_oms: int, gear_s: float) -> int:
    """How many gears of `gear_s` a build of so many seconds allows; 0 or less when none."""
    return math.floor((budget_s - num_oms * FIXED_S) / gear_s)
