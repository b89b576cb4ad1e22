"""acl.mdl: loading and unloading.

Source: hicann/ge api/acl/acl_model/model/model.cpp, model_config_om2.cpp, model_common.cpp
(CheckMdlConfigHandle); runtime/v1/graph/load/model_manager/davinci_model.cc (InitWeightMem,
InitFeatureMapAndP2PMem, GetUserDeviceMemForFileConstant).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omruntime.device.simacl.errors import Code, NotSimulatedError, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.loaded_model import LoadConfig, LoadedModel, SimulatedOm
from omruntime.device.simacl.memory import MallocPolicy, Place, reserved_bytes
from omruntime.device.simacl.objects import Context
from omruntime.device.simacl.om_reading import read_memory, read_path
from omruntime.device.simacl.program import ProgramSession, map_file
from omruntime.device.simacl.spans import Span
from omruntime.device.simacl.state import Calls, State

_PRIORITY, _LOAD_TYPE, _PATH, _MEM_ADDR, _MEM_SIZE = 0, 1, 2, 3, 4
_WEIGHT_ADDR, _WEIGHT_SIZE, _WORK_ADDR, _WORK_SIZE = 5, 6, 7, 8
_WEIGHT_PATH, _WITHOUT_GRAPH = 14, 28
_FILE, _FILE_WITH_MEM, _MEM, _MEM_WITH_MEM, _FILE_WITH_QUEUE, _MEM_WITH_QUEUE = range(1, 7)


@dataclass(frozen=True, slots=True)
class _Given:
    """Memory that the caller gives to a load; an address of 0 leaves it to the loader."""

    work: tuple[int, int] = (0, 0)
    weight: tuple[int, int] = (0, 0)
    external: dict[str, tuple[int, int]] = field(default_factory=dict)


def load_from_file(state: State, path: str) -> int:
    """See acl.mdl.load_from_file."""
    return _load(state, read_path(path), _Given())


def load_from_mem(state: State, address: int, size: int) -> int:
    """See acl.mdl.load_from_mem."""
    return _load(state, _read_region(state, address, size), _Given())


def load_from_file_with_mem(
    state: State, path: str, work: int, work_size: int, weight: int, weight_size: int
) -> int:
    """See acl.mdl.load_from_file_with_mem."""
    given = _Given((work, work_size), (weight, weight_size))
    return _load(state, read_path(path), given)


def load_from_mem_with_mem(state: State, address: int, size: int, *memory: int) -> int:
    """See acl.mdl.load_from_mem_with_mem."""
    work, work_size, weight, weight_size = memory
    given = _Given((work, work_size), (weight, weight_size))
    return _load(state, _read_region(state, address, size), given)


def query_size(state: State, path: str) -> tuple[int, int]:
    """See acl.mdl.query_size: work memory, and weights inside of the OM."""
    state.context()
    om = read_path(path)
    return om.work_bytes, om.weight_bytes


def query_size_from_mem(state: State, address: int, size: int) -> tuple[int, int]:
    """See acl.mdl.query_size_from_mem."""
    state.context()
    om = _read_region(state, address, size)
    return om.work_bytes, om.weight_bytes


def create_config_handle(state: State) -> int:
    """See acl.mdl.create_config_handle."""
    return state.handles.add(LoadConfig())


def destroy_config_handle(state: State, handle: int) -> None:
    """See acl.mdl.destroy_config_handle."""
    state.handles.remove(LoadConfig, handle, "config handle")


def set_config_opt(state: State, handle: int, attr: int, value: object) -> None:
    """See acl.mdl.set_config_opt; the wrapper takes the value's type from the attribute."""
    config = state.handles.get(LoadConfig, handle, "config handle")
    wanted = str if attr == _PATH else int
    if not isinstance(value, wanted):
        raise TypeError("acl.mdl.set_config_opt args parse failed")
    if attr == _WITHOUT_GRAPH:
        raise Refusal(Code.INVALID_PARAM, f"attribute {attr}: got 8 bytes, wanted 4")
    if value == 0 and attr in (_MEM_ADDR, _WEIGHT_ADDR, _WORK_ADDR, _WEIGHT_PATH):
        raise Refusal(Code.INVALID_PARAM, f"attribute {attr}: a null pointer")
    config.options[attr] = value


def set_external_weight_address(
    state: State, handle: int, file_name: str, address: int, size: int
) -> None:
    """See aclmdlSetExternalWeightAddress, which pyACL does not wrap."""
    config = state.handles.get(LoadConfig, handle, "config handle")
    if not file_name or address == 0:
        raise Refusal(Code.INVALID_PARAM, "set_external_weight_address: a null pointer")
    if size == 0 or size % 32:
        raise Refusal(Code.INVALID_PARAM, f"size {size} is not a multiple of 32 above 0")
    config.external[file_name] = (address, size)


def load_with_config(state: State, handle: int) -> int:
    """See acl.mdl.load_with_config."""
    config = state.handles.get(LoadConfig, handle, "config handle")
    kind = config.options.get(_LOAD_TYPE)
    if kind in (_FILE_WITH_QUEUE, _MEM_WITH_QUEUE):
        raise NotSimulatedError("loads with queues are not simulated")
    if kind in (_FILE, _FILE_WITH_MEM):
        om = read_path(str(_required(config, _PATH, "model path")))
        if _WEIGHT_PATH in config.options:
            raise Refusal(Code.INVALID_PARAM, "WEIGHT_PATH does not go with a load from a file")
    elif kind in (_MEM, _MEM_WITH_MEM):
        address, size = (_required(config, a, "model memory") for a in (_MEM_ADDR, _MEM_SIZE))
        om = _read_region(state, int(address), int(size))
    else:
        raise Refusal(Code.INVALID_PARAM, f"load type is {kind}, wanted 1..6")
    return _load(state, om, _given(config, kind))


def _required(config: LoadConfig, attr: int, what: str) -> int | str:
    if attr not in config.options:
        raise Refusal(Code.INVALID_PARAM, f"{what} is not set (attribute {attr})")
    return config.options[attr]


def _given(config: LoadConfig, kind: int) -> _Given:
    options = {attr: value for attr, value in config.options.items() if isinstance(value, int)}
    memory = [options.get(a, 0) for a in (_WORK_ADDR, _WORK_SIZE, _WEIGHT_ADDR, _WEIGHT_SIZE)]
    if any(memory) and kind not in (_FILE_WITH_MEM, _MEM_WITH_MEM):
        raise UndefinedBehaviourError(f"load type {kind} ignores the memory that was set")
    work, work_size, weight, weight_size = memory
    return _Given((work, work_size), (weight, weight_size), config.external)


def unload(state: State, model_id: int) -> None:
    """See acl.mdl.unload."""
    model = find_model(state, model_id)
    require_own_context(state.context(), model, f"unload of model {model_id}")
    if any(task.model_id == model_id for task in state.pending()) or model.is_executing:
        raise UndefinedBehaviourError(f"unload of model {model_id} while it runs")
    del state.models[model_id]
    for address in model.owned:
        model.context.device.memory.give_back(address)


def find_model(state: State, model_id: int) -> LoadedModel:
    """A loaded model.

    Raises:
        Refusal: The id is unknown or unloaded.
    """
    if model_id not in state.models:
        raise Refusal(Code.GE_EXEC_MODEL_ID_INVALID, f"model id {model_id} is not loaded")
    return state.models[model_id]


def require_own_context(context: Context, model: LoadedModel, what: str) -> None:
    """Refuse another context than the one the model was loaded in.

    Source: CANN model API reference, aclmdlExecute and aclmdlUnload, restrictions.
    """
    if context is not model.context:
        raise UndefinedBehaviourError(f"{what} in another context than it was loaded in")


def _read_region(state: State, address: int, size: int) -> SimulatedOm:
    if address == 0 or size == 0:
        raise Refusal(Code.INVALID_PARAM, "load from a null pointer")
    region = state.addresses.region(address, size, "the model in memory")
    state.require_idle("a load from memory", (region.span,), ())
    return read_memory(region.content.tobytes())


def _load(state: State, om: SimulatedOm, given: _Given) -> int:
    context = state.context()
    if om.soc_version and om.soc_version != state.card.soc:
        raise Refusal(
            Code.GE_FAILURE,
            f"E10001: the model was compiled for {om.soc_version}, the device is {state.card.soc}",
        )
    external = {
        name: _user_memory(state, context, name, place) for name, place in given.external.items()
    }
    state.require_idle("a load", external.values(), ())
    session = ProgramSession(
        om.program, _outside(state, om, given.external), state.card.num_threads
    )
    owned: list[int] = []
    try:
        work = _memory(state, context, "work", given.work, om.work_bytes, owned)
        weight = _memory(state, context, "weight", given.weight, om.weight_bytes, owned)
    except Refusal:
        for address in owned:
            context.device.memory.give_back(address)
        raise
    _require_apart(work, (weight, *external.values()))
    _note_overwritten(state, om, weight)
    user_spans = [
        span for span, (address, _) in ((work, given.work), (weight, given.weight)) if address
    ]
    state.num_loads += 1
    state.models[state.num_loads] = LoadedModel(
        om, session, context, work, (weight, *external.values()),
        (*user_spans, *external.values()), tuple(owned),
    )  # fmt: skip
    return state.num_loads


def _memory(
    state: State, context: Context, what: str, given: tuple[int, int], need: int, owned: list[int]
) -> Span:
    """The user's memory, or some that the loader takes."""
    address, size = given
    if address:
        if size < need:
            raise Refusal(
                Code.GE_PARAM_INVALID, f"[Check] {what} memory of {size} bytes, wanted {need}"
            )
        return _user_memory(state, context, what, given)
    if need:
        # Huge pages first, as for any large block.
        reserved = reserved_bytes(need, MallocPolicy.HUGE_FIRST)
        address = context.device.memory.allocate(need, reserved, "the loader", keeps=False)
        owned.append(address)
    return Span.of(address, need)


def _user_memory(state: State, context: Context, what: str, given: tuple[int, int]) -> Span:
    region = state.addresses.region(*given, f"{what} memory of a load")
    if region.place is not Place.DEVICE or region.device_id != context.device.device_id:
        raise UndefinedBehaviourError(f"{what} memory of a load is not on the model's device")
    return region.span


def _require_apart(work: Span, weights: tuple[Span, ...]) -> None:
    if any(work.overlaps(weight) for weight in weights):
        raise UndefinedBehaviourError("work memory and weights of one load overlap")


def _note_overwritten(state: State, om: SimulatedOm, weight: Span) -> None:
    """A load copies its weights into weight memory, whatever stood there."""
    for other in state.models.values():
        # What the same OM's load writes to the same place is what stands there.
        is_again = other.om.identity == om.identity and weight.start == other.weight_spans[0].start
        spans = other.weight_spans[is_again:]
        if any(weight.overlaps(span) for span in spans):
            other.weights_destroyed_by = "another load into the same weight memory"


def _outside(
    state: State, om: SimulatedOm, external: dict[str, tuple[int, int]]
) -> dict[str, memoryview]:
    """The bytes of each weight file: the user's device memory, else the file beside the OM."""
    found: dict[str, memoryview] = {}
    for file in {weight.file for weight in om.program.weights if weight.file}:
        name = file.rpartition("/")[2]
        if name in external:
            region = state.addresses.region(*external[name], f"external weight {name}")
            found[file] = region.content.data
        elif om.folder is None:
            raise Refusal(Code.GE_FAILURE, f"[Load] external weight {name} has no address")
        else:
            found[file] = map_file(om.folder / file)
    return found


CALLS: Calls = {
    "mdl.load_from_file": load_from_file,
    "mdl.load_from_mem": load_from_mem,
    "mdl.load_from_file_with_mem": load_from_file_with_mem,
    "mdl.load_from_mem_with_mem": load_from_mem_with_mem,
    "mdl.load_with_config": load_with_config,
    "mdl.query_size": query_size,
    "mdl.query_size_from_mem": query_size_from_mem,
    "mdl.create_config_handle": create_config_handle,
    "mdl.destroy_config_handle": destroy_config_handle,
    "mdl.set_config_opt": set_config_opt,
    "mdl.unload": unload,
}
