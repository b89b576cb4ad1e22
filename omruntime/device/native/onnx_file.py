"""Reads an ONNX file without the onnx package, its weights where they lie.

Owns the numbers of ONNX's protobuf fields. Weights in a file beside it are mapped, not read: most
are copied once, into the layout of the kernels, and an embedding's rows are read as they are asked
for.

Source: onnx 1.22, onnx/onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from omruntime.device.native.graph import Array, Graph, Node
from omruntime.errors import BundleError
from omruntime.om_file.wire import Field, FieldBudget, Message

# A graph of 30 layers has some 30,000 fields.
_MAX_FIELDS = 5_000_000
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    3: np.dtype(np.int8),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    16: np.dtype(np.uint16),
}
_IS_EXTERNAL = 1


def read_onnx(path: Path) -> Graph:
    """The graph of a file.

    Raises:
        BundleError: It is no ONNX file, or has something that no step graph has; the message
            names it.
    """
    data = path.read_bytes()
    model = Message(memoryview(data), 0, path.name, FieldBudget(_MAX_FIELDS))
    try:
        for field in model.fields():
            if field.number == 7:
                return _Reader(path).graph(model.nested(field, path.name))
    except (ValueError, OSError) as error:
        raise BundleError(f"{path.name}: {error}") from error
    raise BundleError(f"{path.name}: got no graph, wanted an ONNX model")


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, mmap.mmap] = {}

    def graph(self, message: Message) -> Graph:
        nodes: list[Node] = []
        constants: dict[str, Array] = {}
        inputs: list[str] = []
        outputs: list[str] = []
        for field in message.fields():
            if field.number == 1:
                nodes.append(self._node(message.nested(field, "node")))
            elif field.number == 5:
                name, array = self._tensor(message.nested(field, "initializer"))
                constants[name] = array
            elif field.number in (11, 12):
                names = inputs if field.number == 11 else outputs
                names.append(_value_name(message.nested(field, "value")))
        given = tuple(name for name in inputs if name not in constants)
        return Graph(nodes, constants, given, tuple(outputs), tuple(self._files.values()))

    def _node(self, message: Message) -> Node:
        inputs: list[str] = []
        outputs: list[str] = []
        texts: dict[int, str] = {}
        attributes: dict[str, Any] = {}
        for field in message.fields():
            if field.number == 5:
                name, value = self._attribute(message.nested(field, "attribute"))
                attributes[name] = value
            elif field.number in (1, 2):
                (inputs if field.number == 1 else outputs).append(message.text(field))
            elif field.number in (3, 4, 7):
                texts[field.number] = message.text(field)
        domain = texts.get(7, "")
        op = texts.get(4, "")
        full = f"{domain}.{op}" if domain not in ("", "ai.onnx") else op
        return Node(full, texts.get(3, ""), tuple(inputs), tuple(outputs), attributes)

    def _attribute(self, message: Message) -> tuple[str, Any]:
        name = ""
        value: Any = None
        many: list[float] = []
        for field in message.fields():
            if field.number == 1:
                name = message.text(field)
            elif field.number == 5:
                value = self._tensor(message.nested(field, "attribute"))[1]
            elif field.number in (7, 8):
                many.extend((message.floats if field.number == 7 else message.integers)(field))
                value = tuple(many)
            elif field.number in _ATTRIBUTE_VALUES:
                value = _ATTRIBUTE_VALUES[field.number](message, field)
            elif field.number in (6, 10, 11):
                raise BundleError(f"attribute {name!r} holds graphs, which the device has not")
        return name, value

    def _tensor(self, message: Message) -> tuple[str, Array]:
        fields: dict[int, list[Field]] = {}
        for field in message.fields():
            fields.setdefault(field.number, []).append(field)
        dims = [size for field in fields.get(1, ()) for size in message.integers(field)]
        name = next((message.text(field) for field in fields.get(8, ())), "")
        kind = next((field.unsigned for field in fields.get(2, ())), 0)
        if kind not in _DTYPES:
            raise BundleError(f"{name}: got ONNX type {kind}, wanted one of {sorted(_DTYPES)}")
        dtype = _DTYPES[kind]
        if any(field.unsigned == _IS_EXTERNAL for field in fields.get(14, ())):
            pairs = dict(_pair(message.nested(field, "place")) for field in fields.get(13, ()))
            return name, self._external(name, pairs, dtype).reshape(dims)
        if 9 in fields:
            return name, np.frombuffer(bytes(fields[9][0].data), dtype).reshape(dims)
        listed: list[float] = []
        for number in (4, 5, 7):
            read = message.floats if number == 4 else message.integers
            listed.extend(value for field in fields.get(number, ()) for value in read(field))
        return name, np.array(listed, dtype).reshape(dims)

    def _external(self, name: str, external: dict[str, str], dtype: np.dtype[Any]) -> Array:
        location = external.get("location", "")
        if location != Path(location).name or not location:
            raise BundleError(
                f"{name}: got weights in {location!r}, wanted a file beside the graph"
            )
        if location not in self._files:
            self._files[location] = _mapped(self._path.parent / location)
        file, offset = self._files[location], int(external.get("offset", "0"))
        length = int(external.get("length", "-1"))
        if not 0 <= offset <= offset + length <= len(file):
            raise BundleError(f"{name}: {location} ends before its {external.get('length')} bytes")
        return np.frombuffer(file, np.uint8, length, offset).view(dtype)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


_ATTRIBUTE_VALUES: dict[int, Callable[[Message, Field], Any]] = {
    2: lambda _, field: field.float32,
    3: lambda _, field: field.integer,
    4: lambda message, field: message.text(field),
}


def _value_name(message: Message) -> str:
    return next((message.text(f) for f in message.fields() if f.number == 1), "")


def _pair(message: Message) -> tuple[str, str]:
    texts = {field.number: message.text(field) for field in message.fields()}
    return texts.get(1, ""), texts.get(2, "")
