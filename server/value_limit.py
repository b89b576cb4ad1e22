"""ValueLimit: refuses messages of a great many values.

Bytes are read in no time, but each value is looked at in Python, in the loop that sends everybody's
tokens; millions of them would hold it up for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from omruntime.errors import RequestError

# Twice the longest list that an RPC takes, so that lists are refused by their names. So many ids
# take a tenth of a second, so many turns of a chat some tenths.
MAX_VALUES = 1 << 19
# The ids of a prompt are copied and compared at once: so many of them count as one value.
IDS_PER_VALUE = 4
_IDS = ("omserve.v1.TokenIds.ids", "vllm.grpc.engine.TokenizedInput.input_ids")


def require_few_values(message: Message, num_bytes: int) -> None:
    """Check how many fields, list items and map entries a message and those inside of it hold.

    Args:
        num_bytes: Of the message as it came; each value takes one or more.

    Raises:
        RequestError: More than `MAX_VALUES`.
    """
    if num_bytes <= MAX_VALUES:
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
    return len(value) // (IDS_PER_VALUE if descriptor.full_name in _IDS else 1)


def messages_of(descriptor: FieldDescriptor, value: Any) -> Iterable[Message]:
    """The messages that a set field holds."""
    inner_type = descriptor.message_type
    if inner_type is None:
        return ()
    if inner_type.GetOptions().map_entry:
        is_message = inner_type.fields_by_name["value"].message_type is not None
        return value.values() if is_message else ()
    return value if descriptor.is_repeated else (value,)
