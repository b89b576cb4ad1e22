"""Field names: what refuses a request, in the names that the clients of its route send.

The engine and the text layer speak of our own fields, as gRPC has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from omruntime.errors import RequestError
from server.http.schema import ChatBody

Names = Mapping[str, str]
"""Our name of a field -> the route's; behind a dot stands a place inside of it."""

_SAMPLING = {"min_new_tokens": "min_tokens", "include_stop": "include_stop_str_in_output"}
_CHAT = {
    **_SAMPLING,
    "logprobs": "top_logprobs",
    "prompt": "messages",
    "template_arguments": "chat_template_kwargs",
}
COMPLETION_NAMES: Names = {
    **_SAMPLING,
    "constraint": "response_format",
    "max_new_tokens": "max_tokens",
    "text": "prompt",
    "token_ids": "prompt",
}
RESPONSES_NAMES: Names = {
    **_CHAT,
    "constraint": "text.format",
    "max_new_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
}
TGI_NAMES: Names = {
    "constraint": "grammar",
    "logprobs": "top_n_tokens",
    "prompt_logprobs": "decoder_input_details",
    "text": "inputs",
}
DETOKENIZE_NAMES: Names = {"token_ids": "tokens"}


def chat_names(body: ChatBody) -> Names:
    """Of a chat body: the names that it uses, where there are two."""
    is_newer = body.max_completion_tokens is not None
    is_forced = body.tool_choice not in (None, "auto", "none")
    return {
        **_CHAT,
        "constraint": "tools" if is_forced else "response_format",
        "max_new_tokens": "max_completion_tokens" if is_newer else "max_tokens",
    }


@contextmanager
def named_as(names: Names) -> Iterator[None]:
    """Raise a `RequestError` of the block in these names."""
    try:
        yield
    except RequestError as error:
        raise renamed(error, names) from error


def renamed(error: RequestError, names: Names) -> RequestError:
    """The same error in other names; a copy, as requests may share one.

    A message names the field to blame first. Further ones are known by their underscore: others
    could be plain words.
    """
    text = str(error)
    for ours, theirs in names.items():
        if "_" in ours:
            text = re.sub(rf"\b{ours}\b", theirs, text)
    blamed = names.get(error.param or "")
    if blamed is not None and error.param != "prompt":
        text = re.sub(rf"^{error.param}\b", blamed, text)
    copy = type(error).__new__(type(error), text)
    copy.__dict__.update(vars(error))
    if blamed is not None:
        copy.param = blamed.partition(".")[0]
    return copy
