"""The table of probes: what is assumed, where it is relied on, how it is checked.

docs/simulation.md lists the same facts; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atc_pipeline.probe import gear_probes, memory_probes, operator_probes
from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Probe:
    """One assumption.

    Attributes:
        probe_id: Stable, for reports.
        assumed: What must hold, in one sentence.
        relied_on: The modules that would be wrong otherwise.
        run: Checks it.
    """

    probe_id: str
    assumed: str
    relied_on: str
    run: Callable[[Bench], Outcome]


PROBES = (
    Probe(
        "soc-name",
        "acl.get_soc_name gives the name that --target and soc_version use.",
        "omruntime/device/ascend",
        memory_probes.soc_name,
    ),
    Probe(
        "device-count",
        "Each chip of a 300I Duo is a device of its own.",
        "docs/ascend.md, one om-serve for each chip",
        memory_probes.device_count,
    ),
    Probe(
        "memory-info",
        "acl.rt.get_mem_info with attribute 0 (DDR) gives the memory of a 310P.",
        "omruntime/device/ascend, the memory budget",
        memory_probes.memory_info,
    ),
    Probe(
        "load-memory",
        "A loaded OM takes about the work and weight sizes that acl.mdl.query_size announces.",
        "omruntime/device/ascend, the memory budget",
        memory_probes.load_memory,
    ),
    Probe(
        "gear-weights",
        "An OM with several gears holds each constant once.",
        "the layouts per-phase and unified of export-om build",
        gear_probes.gear_weights,
    ),
    Probe(
        "gear-packing",
        "A small gear's data lies packed at the start of buffers made for the largest gear.",
        "omruntime/device/ascend, inputs and outputs of gears",
        gear_probes.gear_packing,
    ),
    Probe(
        "gear-cost",
        "Choosing a gear costs little against a decode step.",
        "omruntime/device/ascend, gears chosen at every step",
        gear_probes.gear_cost,
    ),
    Probe(
        "gears-in-file",
        "The OM file names inputs and gears as acl reports them, in the order of the input shapes.",
        "omruntime/om_file, the check of a bundle at load",
        gear_probes.gears_in_file,
    ),
    Probe(
        "external-weight-names",
        "Two OMs of one graph give equal external weights equal names.",
        "the layouts of several OMs with --external_weight=1",
        gear_probes.external_weight_names,
    ),
    Probe(
        "external-weight-address",
        "aclmdlSetExternalWeightAddress takes pyACL's config handle, and two OMs may share one "
        "copy in device memory.",
        "omruntime/device/ascend, weights of several OMs",
        gear_probes.external_weight_address,
    ),
    Probe(
        "npu-rms-norm",
        "NPURmsNorm of domain npu compiles at opset 18 and computes its definition.",
        "export/lower_ascend.py, export/npu_functions.py",
        operator_probes.npu_rms_norm,
    ),
    Probe(
        "npu-rotary-mul",
        "NPURotaryMul of domain npu compiles at opset 18 and computes its definition.",
        "export/lower_ascend.py, export/npu_functions.py",
        operator_probes.npu_rotary_mul,
    ),
    Probe(
        "int32-inputs",
        "ATC takes int32 graph inputs of an ONNX file and keeps their values.",
        "export, all integer inputs of a step graph",
        operator_probes.int32_inputs,
    ),
    Probe(
        "float32-islands",
        "precision_mode_v2=origin computes in float32 between explicit casts.",
        "export/lower_ascend.py, norms, softmax and logits",
        operator_probes.float32_islands,
    ),
    Probe(
        "ai-cpu-list",
        "An OM lists the operators that left the AI Core.",
        "export-om inspect, the check of a compiled OM",
        operator_probes.ai_cpu_list,
    ),
    Probe(
        "scatter-nd-engine",
        "Where a float16 ScatterND runs is unknown; step graphs have none.",
        "atc_pipeline/lint, its advice on ScatterND",
        operator_probes.scatter_nd_engine,
    ),
    Probe(
        "pool-between-runs",
        "A run reads its inputs in place: what was copied into the pool since is seen.",
        "omruntime/device/ascend, keys and values appended by the runtime",
        memory_probes.pool_written_between_runs,
    ),
    Probe(
        "large-pool",
        "A tensor of 2**31 elements or more may not be addressed to its end; pools stay below.",
        "atc_pipeline/plan/budget.py, the largest pool",
        memory_probes.large_pool,
    ),
    Probe(
        "copy-of-nothing",
        "A copy of 0 bytes fails on some versions; none is made.",
        "omruntime/device/ascend, copies",
        memory_probes.copy_of_nothing,
    ),
    Probe(
        "unaligned-copy",
        "Asynchronous copies want addresses that are multiples of 64; others are not made.",
        "omruntime/device/ascend, export: one token's bytes are a multiple of 64",
        memory_probes.unaligned_copy,
    ),
)
