"""The request bodies of OpenAI's routes: names, types and what else is done with unknown fields.

Ranges are checked by `SamplingParams`. Three kinds of fields exist beside those that are built
in: harmless ones, accepted and without effect; known ones that would change the answer, refused
by name; unknown ones, accepted and logged once, since clients send extras of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)

from omruntime.errors import FieldError

logger = logging.getLogger(__name__)

Number = StrictFloat
Item = TypeVar("Item")


class _FirstFault(FailFast):
    """The first wrong item refuses the whole list: pydantic would otherwise describe each."""

    __hash__ = object.__hash__  # unions want it


FastList = Annotated[list[Item], _FirstFault()]
# Turns of a conversation, or parts of one: each takes some tokens, so no context holds more.
MAX_TURNS = 10_000
ShortList = Annotated[list[Item], _FirstFault(), Field(max_length=MAX_TURNS)]


def _kind_of_prompt(value: Any) -> str | None:
    """Of the first item, so that a long list is read once and not once for each kind."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return "texts" if isinstance(first, str) else "lists" if isinstance(first, list) else "ids"


Prompt = Annotated[
    Annotated[StrictStr, Tag("text")]
    | Annotated[FastList[StrictStr], Tag("texts")]
    | Annotated[FastList[StrictInt], Tag("ids")]
    | Annotated[FastList[FastList[StrictInt]], Tag("lists")],
    Discriminator(
        _kind_of_prompt,
        custom_error_type="prompt_kind",
        custom_error_message="Input should be a text, texts, token ids or lists of token ids",
    ),
]

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
)
# Extra bytes against who listens to sizes; there are none here.
_HARMLESS_STREAM_OPTIONS = frozenset({"continuous_usage_stats", "include_obfuscation"})
# A value that asks for nothing special is taken: it is what would happen anyway.
NOT_BUILT_IN: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "detokenize": (None, True),
    "documents": (None, []),
    "ebnf": (None,),
    "echo": (None, False),
    "enable_thinking": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_reasoning": (None, True),
    "json_schema": (None,),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1.0),
    "logits_processors": (None, []),
    "lora_path": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "priority": (None, 0),
    "reasoning_effort": (None,),
    "regex": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "structural_tag": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "verbosity": (None, "medium"),
    "vllm_xargs": (None, {}),
    "web_search_options": (None,),
}
# What does the same here.
INSTEAD = {
    "function_call": "tool_choice",
    "functions": "tools",
    "enable_thinking": "chat_template_kwargs",
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
    "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs",
    "json_schema": "response_format",
    "regex": "structured_outputs",
}
# Names come from clients: beyond so many, further ones go unlogged rather than fill the memory.
_MAX_LOGGED = 1000
_logged: set[str] = set()


def way_without(name: str, instead: Mapping[str, str]) -> str:
    """What a client can do that sent a field which is not built in."""
    return f"use {instead[name]}" if name in instead else "leave it out"


class StreamOptions(BaseModel):
    """How a stream is written."""

    model_config = ConfigDict(extra="allow")
    include_usage: StrictBool = False

    @model_validator(mode="after")
    def _sort_out_extras(self) -> StreamOptions:
        for name, value in (self.model_extra or {}).items():
            if name == "continuous_usage_stats" and value:
                raise FieldError(
                    "stream_options", f"stream_options.{name} is not built in; leave it out"
                )
            if name not in _HARMLESS_STREAM_OPTIONS:
                log_once(f"stream_options.{name}")
        return self


class NamedSchema(BaseModel):
    """A JSON Schema and its name; `strict` has no effect, as every schema is followed."""

    model_config = ConfigDict(extra="forbid")
    name: StrictStr
    description: StrictStr | None = None
    # OpenAI's clients leave it out for "any JSON", which is what json_object is for.
    schema_: dict[str, Any] | StrictBool = Field(alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """What the answer's text may be."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class GenerationBody(BaseModel):
    """What chat and plain completions have in common."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = Field(
        default=None, description="The served name; left out: that one."
    )
    max_tokens: StrictInt | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    n: StrictInt | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: StrictStr | FastList[StrictStr] | None = None
    seed: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    response_format: ResponseFormat | None = None
    # Beyond OpenAI's, by the names that vLLM's clients send.
    top_k: StrictInt | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: StrictInt | None = None
    stop_token_ids: FastList[StrictInt] | None = None
    allowed_token_ids: FastList[StrictInt] | None = None
    prompt_logprobs: StrictInt | None = None
    ignore_eos: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    include_stop_str_in_output: StrictBool | None = None
    cache_salt: StrictStr | None = None
    structured_outputs: dict[str, Any] | None = Field(
        default=None, description="One of json (a schema), json_object, regex, choice, grammar."
    )

    @model_validator(mode="after")
    def _sort_out_extras(self) -> GenerationBody:
        for name, value in (self.model_extra or {}).items():
            if name in NOT_BUILT_IN and value not in NOT_BUILT_IN[name]:
                raise FieldError(name, f"{name} is not built in; {way_without(name, INSTEAD)}")
            if name not in HARMLESS and name not in NOT_BUILT_IN:
                log_once(name)
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError(
                "prompt_logprobs", "prompt_logprobs is for whole replies; leave stream out"
            )
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options is set without stream; set stream")
        return self


def log_once(name: str) -> None:
    """Say of an unknown field that it has no effect, the first time that it comes."""
    if name not in _logged and len(_logged) < _MAX_LOGGED:
        _logged.add(name)
        logger.warning("unknown request field has no effect field=%r", name[:64])


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr
    text: StrictStr | None = None


class CalledFunction(BaseModel):
    """A call that the assistant made: `arguments` is JSON text."""

    name: StrictStr
    arguments: StrictStr | dict[str, Any] = ""


class ToolCall(BaseModel):
    """A call of an earlier turn."""

    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow")
    role: StrictStr
    content: StrictStr | ShortList[TextPart] | None = None
    name: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    tool_calls: FastList[ToolCall] | None = None
    tool_call_id: StrictStr | None = None


class Function(BaseModel):
    """What a tool is called and takes; `strict` has no effect: forced calls always validate."""

    model_config = ConfigDict(extra="forbid")
    name: StrictStr = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: Function


class ToolName(BaseModel):
    """The tool to call."""

    name: StrictStr


class NamedTool(BaseModel):
    """`tool_choice` of one tool."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: ToolName


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: ShortList[Message]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # SGLang's; false leaves a thought where it stands, in the content.
    separate_reasoning: StrictBool | None = None
    # At most as many as OpenAI takes.
    tools: FastList[Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: StrictInt | None = None
    echo: StrictBool | None = None
