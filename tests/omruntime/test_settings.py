"""Every setting is checked by itself, and the message names it."""

from __future__ import annotations

import dataclasses

import pytest

from omruntime.errors import ConfigError
from omruntime.settings import EngineSettings


def test_defaults_are_valid_and_leave_the_limits_to_the_bundle() -> None:
    settings = EngineSettings()
    assert settings.device == "cpu"
    assert settings.max_num_seqs is None
    assert settings.max_model_len is None
    assert settings.max_chunk_tokens is None


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("kv_memory_mib", 1),
        ("num_blocks", 2),
        ("max_num_seqs", 1),
        ("max_model_len", 2),
        ("max_chunk_tokens", 2),
        ("max_queued_requests", 1),
        ("max_queued_tokens", 1),
        ("num_threads", 0),
        ("ttft_target_ms", 1),
        ("itl_target_ms", 1),
        ("check_invariants_every", 0),
    ],
)
def test_least_value_is_taken_and_one_less_refused(name: str, least: int) -> None:
    assert getattr(dataclasses.replace(EngineSettings(), **{name: least}), name) == least
    with pytest.raises(ConfigError, match=rf"{name} is {least - 1}, wanted at least {least}"):
        dataclasses.replace(EngineSettings(), **{name: least - 1})


@pytest.mark.parametrize("device", ["ascend:0", "sim:0@Ascend310B1"])
def test_threads_of_the_host_are_refused_for_a_chip(device: str) -> None:
    with pytest.raises(ConfigError, match=f"num_threads is 2: a chip such as {device}"):
        EngineSettings(device=device, num_threads=2)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineSettings().num_threads = 3  # type: ignore[misc]
