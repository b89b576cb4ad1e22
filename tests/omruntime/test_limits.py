"""Settings and manifest brought together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.errors import ConfigError
from omruntime.limits import resolve_limits
from omruntime.manifest import Manifest
from omruntime.settings import MIB, EngineSettings


@pytest.fixture
def manifest(toy_bundle: Path) -> Manifest:
    return Manifest.read(toy_bundle)


def fixed(manifest: Manifest, num_blocks: int, bytes_per_block: int) -> Manifest:
    kv = replace(manifest.kv, num_blocks=num_blocks, bytes_per_block=bytes_per_block)
    return replace(manifest, kv=kv)


def test_a_pool_of_free_size_follows_the_settings(manifest: Manifest) -> None:
    kv = replace(manifest.kv, bytes_per_block=MIB)
    free = replace(manifest, kv=kv)
    assert resolve_limits(EngineSettings(num_blocks=7), free).num_blocks == 7
    assert resolve_limits(EngineSettings(kv_memory_mib=9), free).num_blocks == 9


def test_a_compiled_pool_size_is_used_exactly(manifest: Manifest) -> None:
    compiled = fixed(manifest, 40, MIB)
    for settings in (
        EngineSettings(),
        EngineSettings(num_blocks=40),
        EngineSettings(kv_memory_mib=40),
    ):
        assert resolve_limits(settings, compiled).num_blocks == 40


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (EngineSettings(num_blocks=39), "num_blocks is 39"),
        (EngineSettings(num_blocks=41), "num_blocks is 41"),
        (EngineSettings(kv_memory_mib=39), "kv_memory_mib is 39"),
        (EngineSettings(kv_memory_mib=41), "kv_memory_mib is 41"),
    ],
)
def test_another_size_than_the_compiled_one_is_refused(
    manifest: Manifest, settings: EngineSettings, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: .* pool of 40 blocks \(40 MiB\); .*build"):
        resolve_limits(settings, fixed(manifest, 40, MIB))
