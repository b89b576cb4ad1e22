"""Foreign messages from short data, in a pool of their own.

The global descriptor pool refuses two files that define the same names, so a process that also
holds another project's stubs of the same dialect could not start if ours were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

_FIELD = re.compile(r"(?:(repeated|optional) )?(map<(\w+), ([\w.]+)>|[\w.]+) (\w+) = (\d+)")
_SCALARS = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in ["double", "float", "int32", "int64", "uint32", "uint64", "bool", "string", "bytes"]
}


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: its messages' names, and which sides stream."""

    name: str
    request: str
    response: str
    streams_requests: bool = False
    streams_responses: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One foreign service as data.

    Attributes:
        package, service: As on the wire.
        messages: Fields by message name, as in a .proto file without the semicolons; a nested
            message is named `Outer.Inner` and follows its outer one. `Message/oneof` holds the
            fields of a oneof.
    """

    package: str
    service: str
    messages: Mapping[str, tuple[str, ...]]
    methods: tuple[Method, ...]

    @property
    def full_name(self) -> str:
        """The service's name in paths and in reflection."""
        return f"{self.package}.{self.service}"


class PrivateMessages:
    """The message classes of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._package = dialect.package
        self.pool = DescriptorPool()
        self.pool.Add(_file_of(dialect))

    def message_class(self, name: str) -> type[Message]:
        """The class of a message, such as `ModelInferRequest`."""
        descriptor = self.pool.FindMessageTypeByName(f"{self._package}.{name}")
        return message_factory.GetMessageClass(descriptor)


def _file_of(dialect: Dialect) -> descriptor_pb2.FileDescriptorProto:
    # The name is ours, so that a tool that has the original file keeps both apart.
    file = descriptor_pb2.FileDescriptorProto(
        name=f"omserve/dialects/{dialect.package}.proto", package=dialect.package, syntax="proto3"
    )
    found: dict[str, DescriptorProto] = {}
    for name, fields in dialect.messages.items():
        message_name, _, oneof = name.partition("/")
        if message_name not in found:
            outer, _, own = message_name.rpartition(".")
            siblings = found[outer].nested_type if outer else file.message_type
            found[message_name] = siblings.add(name=own)
        if oneof:
            found[message_name].oneof_decl.add(name=oneof)
        _add_fields(found[message_name], fields, f".{dialect.package}", in_oneof=bool(oneof))
    for message in found.values():
        _add_optional_oneofs(message)
    service = file.service.add(name=dialect.service)
    for method in dialect.methods:
        service.method.add(
            name=method.name,
            input_type=f".{dialect.package}.{method.request}",
            output_type=f".{dialect.package}.{method.response}",
            client_streaming=method.streams_requests,
            server_streaming=method.streams_responses,
        )
    return file


def _add_fields(
    message: DescriptorProto, lines: Iterable[str], package: str, in_oneof: bool
) -> None:
    for line in lines:
        match = _FIELD.fullmatch(line)
        assert match, line
        label, type_name, key, value, name, number = match.groups()
        field = message.field.add(name=name, number=int(number))
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if label == "repeated" or key:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        field.proto3_optional = label == "optional"
        if in_oneof:
            field.oneof_index = len(message.oneof_decl) - 1
        if key:
            # A name without a leading dot is looked up from inside the message outwards.
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = _add_map_entry(message, name, (key, value), package)
        else:
            _set_type(field, type_name, package)


def _set_type(field: FieldDescriptorProto, type_name: str, package: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
        return
    field.type = FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f"{package}.{type_name}"


def _add_map_entry(
    message: DescriptorProto, name: str, types: tuple[str, str], package: str
) -> str:
    """Add what a map is on the wire; the name of it, relative to the message."""
    entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    for number, (field_name, type_name) in enumerate(
        zip(("key", "value"), types, strict=True), start=1
    ):
        field = entry.field.add(name=field_name, number=number)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        _set_type(field, type_name, package)
    return entry_name


def _add_optional_oneofs(message: DescriptorProto) -> None:
    """Each `optional` field is alone in a oneof, which must come after the real ones."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
