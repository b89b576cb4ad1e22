"""What one gear of an OM means: the shapes of its inputs and outputs.

Reads the flat numbers of `inout_info.py`; choosing a gear is the device's business.

Source: hicann/ge compiler/graph/passes/multi_batch/multi_batch_clone_pass.cc (input names),
compiler/graph/preprocess/multi_batch_copy_graph.cc (GetDynamicOutputShape).
"""

from __future__ import annotations

from omruntime.errors import BundleError
from omruntime.om_file.inout_info import InoutInfo

# The extra input, last in order, through which the runtime says which gear runs.
GEAR_INPUT = "ascend_mbatch_shape_data"
ALL_GEARS = -1


def gear_input_shapes(info: InoutInfo, gear: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The inputs' shapes under one of `info.dim_gears`, in the order of --input_shape.

    Raises:
        BundleError: An ordered input is missing, or the gear has not one value for each -1.
    """
    by_name = {tensor.name: tensor.dims for tensor in info.inputs}
    missing = [name for name in info.input_order if name not in by_name]
    if missing:
        raise BundleError(f"the input order names {missing}, the inputs are {list(by_name)}")
    num_open = sum(by_name[name].count(-1) for name in info.input_order)
    if num_open != len(gear):
        raise BundleError(f"the gear {gear} has {len(gear)} values, the inputs leave {num_open}")
    values = iter(gear)
    return {
        name: tuple([next(values) if dim == -1 else dim for dim in by_name[name]])
        for name in info.input_order
    }


def gear_output_shapes(info: InoutInfo, gear_index: int) -> tuple[tuple[int, ...], ...]:
    """The outputs' shapes, in their order, under the gear of that position.

    Raises:
        BundleError: The description of an output is missing or malformed.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    for text in info.output_shapes:
        try:
            gear, output, *dims = (int(number) for number in text.split(",") if number)
        except ValueError as error:
            raise BundleError(f"got the output shape {text!r}, wanted gear,output,dims") from error
        if gear in (gear_index, ALL_GEARS):
            shapes[output] = tuple(dims)
    try:
        return tuple(shapes[i] for i in range(len(info.outputs)))
    except KeyError as error:
        raise BundleError(f"gear {gear_index} lacks the shape of output {error}") from error
