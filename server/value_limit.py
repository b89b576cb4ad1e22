"""ValueLimit: refuses messages of a great many values.

Bytes are read in no time, but each value is looked at in Python, in the loop that sends everybody's
tokens; millions of them would hold it up for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from omruntime.errors import RequestError

# Twice the longest list that an RPC takes, so that lists are refused by their names. So many take
# a few tenths of a second, whatever they are.
MAX_VALUES = 1 << 19
# A message in a list, as a turn of a chat, takes as long as so many numbers.
VALUES_PER_MESSAGE = 4
# The ids of a prompt are copied and compared at once: so many of them count as one value.
IDS_PER_VALUE = 4
_IDS = ("omserve.v1.TokenIds.ids", "vllm.grpc.engine.TokenizedInput.input_ids")


def require_few_values(message: Message, num_bytes: int) -> None:
    """Check how many fields, list items and map entries a message and those inside of it hold.

    Args:
        num_bytes: Of the message as it came; each value takes one or more, which spares small
            messages the counting.

    Raises:
        RequestError: More than `MAX_VALUES`.
    """
    if num_bytes * VALUES_PER_MESSAGE <= MAX_VALUES:
        return
    num_values, waiting = 0, [message]
    while waiting:
        for descriptor, value in waiting.pop().ListFields():
            num_values += _weight(descriptor, value)
            if num_values > MAX_VALUES:
                raise RequestError(
                    f"the message has more than {MAX_VALUES:,} values (fields, list items and map "
                    f"entries); send less at once"
                )
            waiting.extend(messages_of(descriptor, value))


def _weight(descriptor: FieldDescriptor, value: Any) -> int:
    if not descriptor.is_repeated:
        return 1
    if descriptor.full_name in _IDS:
        return len(value) // IDS_PER_VALUE
    return len(value) * (VALUES_PER_MESSAGE if _inner_type(descriptor) else 1)


def messages_of(descriptor: FieldDescriptor, value: Any) -> Iterable[Message]:
    """The messages that a set field holds."""
    inner_type = _inner_type(descriptor)
    if inner_type is None:
        return ()
    if inner_type is not descriptor.message_type:
        values: Iterable[Message] = value.values()
        return values
    return value if descriptor.is_repeated else (value,)


def _inner_type(descriptor: FieldDescriptor) -> Descriptor | None:
    """The kind of messages that a field holds; of a map that of its values."""
    kind = descriptor.message_type
    if kind is None or not kind.GetOptions().map_entry:
        return kind
    return kind.fields_by_name["value"].message_type
