"""ModelFacts and KVSpec of a checkpoint: what its files say, under one rule for each fact.

End tokens: generation_config.json, else config.json (or the GGUF), else the tokenizer's eos
token, else the token that ends a turn in the chat template; the first that names one wins.

Sampling defaults: no generation_config.json gives ours; `do_sample` true (or absent while
sampling values are given) takes the file's values; explicitly false means greedy, temperature 0.
The repetition penalty holds either way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from export.architectures import position_limit
from export.checkpoint import Checkpoint
from export.profiles import CPU, Profile
from export.spec import DEFAULT_MAX_MODEL_LEN, ExportSpec
from export.step_shape import StepShape
from omruntime.errors import BundleError, ConfigError, ExportError
from omruntime.manifest import GRAPH_CONTRACT, KVSpec, ModelFacts, SamplingDefaults

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The ids that end a sequence and where they come from."""

    token_ids: tuple[int, ...]
    source: str


def step_shape(model: PreTrainedModel, block_size: int, profile: Profile = CPU) -> StepShape:
    """The sizes of a model's step graph, its pool as the profile lays it out.

    Raises:
        ExportError: The model has no plain output head.
    """
    config = model.config
    num_heads = int(config.num_attention_heads)
    # head_dim may be absent, or present and null; both mean the quotient.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    head = model.get_output_embeddings()
    if head is None:
        raise ExportError(f"{type(model).__name__} has no output head, so it gives no logits")
    return StepShape(
        num_layers=int(config.num_hidden_layers),
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
        head_dim=int(head_dim),
        block_size=block_size,
        vocab_size=int(head.weight.shape[0]),
        layout=profile.layout,
        dtype=profile.dtype,
    )


def max_model_len(config: PretrainedConfig, spec: ExportSpec) -> int:
    """The positions to cover: asked for, or the model's own limit up to our default."""
    return spec.max_model_len or min(position_limit(config), DEFAULT_MAX_MODEL_LEN)


def model_facts(
    checkpoint: Checkpoint,
    spec: ExportSpec,
    shape: StepShape,
    tokenizer: PreTrainedTokenizerFast,
) -> ModelFacts:
    """All that serving needs to know.

    Raises:
        ConfigError: generation_config.json has a value of the wrong type or out of range, or an
            end token is none of the model's.
    """
    config = checkpoint.config
    ends = end_tokens(checkpoint, tokenizer)
    _require_known(ends, shape.vocab_size)
    architectures = config.architectures or [str(config.model_type)]
    return ModelFacts(
        name=spec.name or _default_name(checkpoint),
        architecture=str(architectures[0]),
        num_layers=shape.num_layers,
        num_heads=int(config.num_attention_heads),
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_model_len=max_model_len(config, spec),
        max_num_seqs=spec.max_num_seqs,
        dtype=spec.weight_dtype,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=ends.token_ids,
        eos_source=ends.source,
        sampling_defaults=sampling_defaults(checkpoint.raw_generation_config),
    )


def kv_spec(shape: StepShape, num_blocks: int | None) -> KVSpec:
    """The paged cache's shape; one block holds keys and values of all layers.

    Args:
        num_blocks: As `profiles.fixed_num_blocks` gives it.
    """
    block_bytes = shape.token_elements * _ITEM_BYTES[shape.dtype] * shape.block_size
    return KVSpec(shape.layout, shape.block_size, shape.dtype, block_bytes, num_blocks)


def kv_identity_inputs(
    config: PretrainedConfig, profile: Profile, kv: KVSpec, hashes: Mapping[str, str]
) -> dict[str, str]:
    """All that decides what a cached key or value is.

    Args:
        hashes: program_sha256, of the program file, which holds the smallest weights itself;
            and weights_sha256.
    """
    rope = getattr(config, "rope_parameters", None)
    return {
        **hashes,
        "rope": json.dumps(rope, sort_keys=True),
        "layer_types": json.dumps(getattr(config, "layer_types", None)),
        "dtype": kv.dtype,
        "layout": kv.layout.value,
        "block_size": str(kv.block_size),
        "graph_contract": str(GRAPH_CONTRACT),
        "profile_revision": profile.revision,
    }


def end_tokens(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerFast) -> EndTokens:
    """The end ids by the rule above; none at all is possible and leaves the length limit."""
    config_name = "the GGUF file" if checkpoint.gguf else "config.json"
    for source, given in (
        ("generation_config.json", checkpoint.raw_generation_config.get("eos_token_id")),
        (config_name, checkpoint.raw_config.get("eos_token_id")),
        ("the tokenizer", tokenizer.eos_token_id),
    ):
        token_ids = _ids(given, source)
        if token_ids:
            return EndTokens(token_ids, source)
    template = str(tokenizer.chat_template or "")
    for token in _TURN_ENDS:
        if token in template and token in tokenizer.get_vocab():
            return EndTokens((int(tokenizer.convert_tokens_to_ids(token)),), "the chat template")
    return EndTokens((), "none: only the length limit ends an answer")


def sampling_defaults(generation_config: Mapping[str, object]) -> SamplingDefaults:
    """What an unset sampling field means, by the rule above.

    Raises:
        ConfigError: A value is of the wrong type or out of range; the message names it.
    """
    try:
        return _sampling_defaults(generation_config)
    except BundleError as error:
        raise ConfigError(f"generation_config.json: {error}; correct or remove it") from error


def _sampling_defaults(generation_config: Mapping[str, object]) -> SamplingDefaults:
    ours = SamplingDefaults()
    do_sample = generation_config.get("do_sample")
    if not isinstance(do_sample, bool | None):
        raise ConfigError(
            f"generation_config.json: do_sample is {do_sample!r}, wanted true or false; correct it"
        )
    greedy = do_sample is False

    def number(key: str, default: float) -> float:
        value = generation_config.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"generation_config.json: {key} is {value!r}, wanted a number")
        # JSON's reader takes NaN, and both it and int go beyond the largest float.
        if not abs(value) <= sys.float_info.max:
            raise ConfigError(f"generation_config.json: {key} is {value}, wanted a finite number")
        return float(value)

    top_k = float(number("top_k", ours.top_k))
    if not top_k.is_integer():
        raise ConfigError(f"generation_config.json: top_k is {top_k}, wanted a whole number")
    penalty = number("repetition_penalty", ours.repetition_penalty)
    if greedy:
        return SamplingDefaults(temperature=0.0, repetition_penalty=penalty)
    return SamplingDefaults(
        temperature=number("temperature", ours.temperature),
        top_p=number("top_p", ours.top_p),
        top_k=int(top_k),
        min_p=number("min_p", ours.min_p),
        repetition_penalty=penalty,
    )


def _require_known(ends: EndTokens, vocab_size: int) -> None:
    for token_id in ends.token_ids:
        if not 0 <= token_id < vocab_size:
            raise ConfigError(
                f"eos_token_id in {ends.source} holds {token_id}, outside the model's 0 to "
                f"{vocab_size - 1}; correct it"
            )


def _ids(given: object, source: str) -> tuple[int, ...]:
    listed: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    found = [value for value in listed if value is not None]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in found):
        raise ConfigError(f"eos_token_id in {source} is {given!r}, wanted an id or a list of ids")
    return tuple(int(str(value)) for value in found)


def _default_name(checkpoint: Checkpoint) -> str:
    files = checkpoint.files
    if files.gguf:
        return files.weights[0].removesuffix(".gguf")
    return files.folder.resolve().name
