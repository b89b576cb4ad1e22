"""The fields of a request by the names that each route's clients send."""

from __future__ import annotations

from server import structured_outputs
from server.field_names import SAMPLING_NAMES, Names
from server.http.schema import ChatBody, CompletionBody, GenerationBody

_CHAT = {
    **SAMPLING_NAMES,
    "logprobs": "top_logprobs",
    "prompt": "messages",
    "template_arguments": "chat_template_kwargs",
}
_COMPLETION: Names = {
    **SAMPLING_NAMES,
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
TOKENIZE_NAMES: Names = {"template_arguments": "chat_template_kwargs"}
DETOKENIZE_NAMES: Names = {"token_ids": "tokens"}


def completion_names(body: CompletionBody) -> Names:
    """Of a completion body."""
    return {**_COMPLETION, **_constraint_names(body)}


def chat_names(body: ChatBody) -> Names:
    """Of a chat body: the names that it uses, where there are two."""
    is_newer = body.max_completion_tokens is not None
    is_forced = body.tool_choice not in (None, "auto", "none")
    return {
        **_CHAT,
        **({"constraint": "tools"} if is_forced else _constraint_names(body)),
        "max_new_tokens": "max_completion_tokens" if is_newer else "max_tokens",
    }


def _constraint_names(body: GenerationBody) -> Names:
    """Of what the answer's text may be, which two fields can say."""
    return (
        structured_outputs.NAMES if body.structured_outputs else {"constraint": "response_format"}
    )
