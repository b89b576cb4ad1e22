"""MODEL_DEF: attributes of the model and the operators of its graphs.

Owns which fields are read. Operators are walked one after another and never kept, so that a
graph of any size takes no memory; only the few that say something about the whole model (inputs,
outputs, gears, outside weights) are decoded in full.

Source: hicann/ge graph_metadef/proto/ge_ir.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from omruntime.om_file.attributes import (
    AttributeDictionary,
    AttributeReader,
    Attributes,
    AttrValue,
)
from omruntime.om_file.wire import Field, FieldBudget, Message, WireType

# A few seconds of reading; large models have some hundred thousand fields that count here.
MAX_FIELDS = 2_000_000
# The protobufs count element types in another way than `data_types.py`.
TYPE_NAMES = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    27: "bfloat16",
    28: "int4",
}


@dataclass(frozen=True, slots=True)
class OpTensor:
    """A tensor of an operator; `dtype` is a key of `TYPE_NAMES`."""

    dtype: int = 0
    dims: tuple[int, ...] = ()
    layout: str = ""
    size_bytes: int = 0

    @property
    def dtype_name(self) -> str:
        """Such as `float16`."""
        return TYPE_NAMES.get(self.dtype, f"dtype {self.dtype}")


@dataclass(frozen=True, slots=True)
class Op:
    """One operator in full.

    Attributes:
        inputs: `node:index` of the producers.
        src_names, src_indexes: Producers of NetOutput's inputs.
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    input_descs: tuple[OpTensor, ...] = ()
    output_descs: tuple[OpTensor, ...] = ()
    src_names: tuple[str, ...] = ()
    src_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of a model; the first is the main one, others are branches and bodies."""

    _message: Message
    _dictionary: AttributeDictionary

    @property
    def name(self) -> str:
        """The graph's name."""
        return _first_text(self._message, 1)

    def op_messages(self) -> Iterator[tuple[str, Message]]:
        """Each operator's type and its message, not decoded yet."""
        for item in self._message.fields():
            if item.number == 6:
                message = self._message.nested(item, "operator")
                yield _first_text(message, 2), message

    def decode(self, message: Message) -> Op:
        """An operator in full."""
        return _decode_op(message, self._dictionary)


def _first_text(message: Message, number: int) -> str:
    return next((message.text(f) for f in message.fields() if f.number == number), "")


@dataclass(frozen=True, slots=True)
class ModelDef:
    """The partition.

    Attributes:
        attributes: Of the model, such as memory_size; never encoded.
        dictionary: What the attributes of its operators are decoded with.
    """

    name: str
    version: int
    attributes: Attributes
    graphs: tuple[Graph, ...]
    dictionary: AttributeDictionary

    def integer(self, name: str) -> int | None:
        """An integer attribute; None when it is absent or something else."""
        value = self.attributes.get(name)
        return value if type(value) is int else None

    def text(self, name: str) -> str:
        """A text attribute; empty when it is absent or something else."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""

    def items(self, name: str) -> tuple[AttrValue, ...]:
        """A list attribute; empty when it is absent or something else."""
        value = self.attributes.get(name)
        return value if isinstance(value, tuple) else ()


def read_model_def(
    data: memoryview,
    offset: int = 0,
    first: AttributeDictionary | None = None,
    budget: FieldBudget | None = None,
) -> ModelDef:
    """Read a MODEL_DEF partition; its operators are read when a caller walks them.

    Args:
        offset: Where it begins in the file, for errors.
        first: The dictionary of the file's first block, for the others.
        budget: Shared by several partitions of one file.

    Raises:
        BundleError: Not a ModelDef, or more than `MAX_FIELDS` fields.
    """
    message = Message(data, offset, "MODEL_DEF", budget or FieldBudget(MAX_FIELDS))
    name, version = "", 0
    attributes = AttributeReader()
    graphs: list[Field] = []
    for item in message.fields():
        if item.number == 1:
            name = message.text(item)
        elif item.number == 2:
            version = item.integer
        elif item.number == 7:
            item.require(WireType.BYTES)
            graphs.append(item)
        elif item.number == 11:
            attributes.read(message.nested(item, "model attribute"))
    dictionary = AttributeDictionary.of_model(attributes.attributes, first)
    walked = tuple(Graph(message.nested(item, "graph"), dictionary) for item in graphs)
    return ModelDef(name, version, attributes.attributes, walked, dictionary)


@dataclass(slots=True)
class _OpParts:
    """What is found of an operator so far."""

    attributes: AttributeReader
    texts: dict[int, list[str]] = field(default_factory=dict)
    descs: dict[int, list[OpTensor]] = field(default_factory=dict)
    src_indexes: list[int] = field(default_factory=list)


def _decode_op(message: Message, dictionary: AttributeDictionary) -> Op:
    parts = _OpParts(AttributeReader(dictionary))
    for item in message.fields():
        if item.number in (1, 2, 5, 24):
            parts.texts.setdefault(item.number, []).append(message.text(item))
        elif item.number == 10:
            parts.attributes.read(message.nested(item, "operator attribute"))
        elif item.number == 25:
            parts.src_indexes.extend(message.integers(item))
        elif item.number in (33, 34):
            desc = _decode_desc(message.nested(item, "tensor description"))
            parts.descs.setdefault(item.number, []).append(desc)
    return Op(
        name=parts.texts.get(1, [""])[-1],
        type=parts.texts.get(2, [""])[-1],
        inputs=tuple(parts.texts.get(5, ())),
        attributes=parts.attributes.attributes,
        input_descs=tuple(parts.descs.get(33, ())),
        output_descs=tuple(parts.descs.get(34, ())),
        src_names=tuple(parts.texts.get(24, ())),
        src_indexes=tuple(parts.src_indexes),
    )


def _decode_desc(message: Message) -> OpTensor:
    dtype, layout, size = 0, "", 0
    dims: list[int] = []
    for item in message.fields():
        if item.number == 2:
            dtype = item.integer
        elif item.number == 3:
            shape = message.nested(item, "shape")
            dims.extend(n for f in shape.fields() if f.number == 1 for n in shape.integers(f))
        elif item.number == 4:
            layout = message.text(item)
        elif item.number == 10:
            size = item.integer
    return OpTensor(dtype, tuple(dims), layout, size)
