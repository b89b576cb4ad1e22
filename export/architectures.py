"""Which architectures and settings are proven to export equal, and why others are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers import __version__ as transformers_version

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
# Rope settings that divide or scale; a list holds one for each frequency.
_POSITIVE_ROPE = (
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "short_factor",
    "long_factor",
)


def require_known_type(raw_config: Mapping[str, object]) -> None:
    """Refuse model types that transformers has no code for, before it fails on them.

    Raises:
        ConfigError: config.json names no model type.
        UnprovenModelError: The type is unknown; the message names it.
    """
    model_type = raw_config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"config.json: model_type is {model_type!r}, wanted the name of an architecture such "
            f"as 'llama'; download the checkpoint's own config.json"
        )
    if model_type in CONFIG_MAPPING:
        return
    if "auto_map" in raw_config:
        raise UnprovenModelError(
            f"model_type {model_type!r} comes with code of its own (auto_map in config.json); "
            f"such code is never run, so the checkpoint cannot be exported"
        )
    raise UnprovenModelError(
        f"config.json: model_type {model_type!r} is unknown to transformers "
        f"{transformers_version}; proven equal are {', '.join(sorted(PROVEN_MODEL_TYPES))}"
    )


def require_known_rope(raw_config: Mapping[str, object]) -> None:
    """Refuse rope settings that transformers cannot run, before it fails on them or does not.

    Raises:
        ConfigError: A setting is not a number above 0; the message names it.
        UnprovenModelError: The message names the type.
    """
    _require_positive({"rope_theta": raw_config.get("rope_theta")})
    for parameters in _rope_dicts(raw_config):
        _require_positive(parameters)
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
        f"{', '.join(sorted(PROVEN_MODEL_TYPES))}; give --allow-unproven to let the parity gate "
        f"alone decide"
    )


def require_length(config: PretrainedConfig, max_model_len: int) -> None:
    """Refuse positions that the model cannot tell apart or turns differently by batch.

    Raises:
        ConfigError: The message names the longest length that works.
    """
    limit = position_limit(config)
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


def position_limit(config: PretrainedConfig) -> int:
    """The positions that the model was made for.

    Raises:
        ConfigError: The config names none.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        raise ConfigError(
            f"the config: max_position_embeddings is {limit!r}, wanted at least 1; correct it"
        )
    return limit


def _require_positive(parameters: Mapping[str, object]) -> None:
    for name in _POSITIVE_ROPE:
        given = parameters.get(name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and not _is_positive(value):
                raise ConfigError(
                    f"the config: {name} of the rope settings is {value!r}, wanted a number "
                    f"above 0; correct it"
                )


def _is_positive(value: object) -> bool:
    # Written so that NaN, infinity and integers beyond the largest float are none.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= sys.float_info.max


def _rope_dicts(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The rope settings of a config, one for all layers or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        settings = config.get(key)
        if not isinstance(settings, Mapping):
            continue
        nested = [value for value in settings.values() if isinstance(value, Mapping)]
        yield from nested or [settings]
