"""Which architectures and settings are proven to export equal, and why others are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transformers import PretrainedConfig

from omruntime.errors import ConfigError, UnprovenModelError

# Each is run through the whole export and the parity gate by tests/export/test_architectures.py.
PROVEN_MODEL_TYPES = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "starcoder2",
    }
)
# Frequencies that are the same for every position and batch.
_FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3"})
# Frequencies that change once a position passes the original length; fixed below it.
_SWITCHING_ROPE = frozenset({"dynamic", "longrope"})
LEARNED_POSITIONS = frozenset({"gpt2"})


def require_known_rope(raw_config: Mapping[str, object]) -> None:
    """Refuse rope types that transformers cannot run, before it fails on them.

    Raises:
        UnprovenModelError: The message names the type.
    """
    for parameters in _rope_dicts(raw_config):
        rope_type = parameters.get("rope_type", parameters.get("type", "default"))
        if rope_type not in _FIXED_ROPE | _SWITCHING_ROPE:
            raise UnprovenModelError(
                f"the checkpoint's config asks for rope type {rope_type!r}; built in are "
                f"{', '.join(sorted(_FIXED_ROPE | _SWITCHING_ROPE))}"
            )


def require_proven(config: PretrainedConfig, allow_unproven: bool) -> None:
    """Refuse an architecture that no test proves, unless allowed.

    Raises:
        UnprovenModelError: The message names architecture and reason.
    """
    if getattr(config, "kv_lora_rank", None):
        raise UnprovenModelError(
            f"{config.model_type} uses multi-head latent attention (MLA), whose keys and values "
            f"differ in size; the KV layout does not hold that"
        )
    if config.model_type in PROVEN_MODEL_TYPES or allow_unproven:
        return
    raise UnprovenModelError(
        f"architecture {config.model_type!r} is not among those proven equal: "
        f"{', '.join(sorted(PROVEN_MODEL_TYPES))}; allow unproven models to let the parity gate "
        f"alone decide"
    )


def require_length(config: PretrainedConfig, max_model_len: int) -> None:
    """Refuse positions that the model cannot tell apart or turns differently by batch.

    Raises:
        ConfigError: The message names the longest length that works.
    """
    limit = int(config.max_position_embeddings)
    if max_model_len > limit and config.model_type in LEARNED_POSITIONS:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but {config.model_type} learned {limit} "
            f"positions; lower it"
        )
    for parameters in _rope_dicts(config.to_dict()):
        rope_type = parameters.get("rope_type", "default")
        if rope_type not in _SWITCHING_ROPE:
            continue
        switch = parameters.get("original_max_position_embeddings")
        switch = switch if isinstance(switch, int) and rope_type == "longrope" else limit
        if max_model_len > switch:
            raise ConfigError(
                f"max_model_len is {max_model_len}, but rope type {rope_type!r} changes its "
                f"frequencies with the longest position of a batch beyond {switch}, which a "
                f"graph for rows of mixed length cannot follow; lower it to {switch}"
            )


def _rope_dicts(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The rope settings of a config, one for all layers or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        settings = config.get(key)
        if not isinstance(settings, Mapping):
            continue
        nested = [value for value in settings.values() if isinstance(value, Mapping)]
        yield from nested or [settings]
