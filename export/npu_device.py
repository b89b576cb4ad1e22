"""The card as a device of torch, through torch_npu; never a stand-in for it.

Whether the versions of torch, torch_npu and CANN fit is what `export-om doctor` says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from omruntime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReferenceDevice:
    """Where a reference runs.

    Attributes:
        name: For the report, such as `npu:0 (Ascend310P3)`.
    """

    name: str
    torch_device: torch.device


class Npu(Protocol):
    """The part of `torch_npu.npu` that is used."""

    def is_available(self) -> bool:
        """Whether there is a card and its driver."""

    def get_device_name(self, device: int) -> str:
        """The chip's name."""


class _TorchNpu(Protocol):
    npu: Npu


def open_npu(
    import_module: Callable[[str], object] = importlib.import_module,
    make_device: Callable[[str], torch.device] = torch.device,
) -> ReferenceDevice:
    """The first visible card.

    Args:
        import_module: Imports torch_npu, which registers the device `npu` with torch.
        make_device: As `torch.device`, which knows `npu` only after that.

    Raises:
        ConfigError: torch_npu is absent or cannot be loaded, or it sees no card.

    Source: README in the torch-npu 2.13.0 wheel, quick verification.
    """
    try:
        module = cast(_TorchNpu, import_module("torch_npu"))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--reference npu needs torch-npu ({error}); install it with: "
            f"pip install '.[npu]' in omserve's folder"
        ) from error
    # Without CANN its libraries are not found, which each version reports in its own way.
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"torch-npu cannot be loaded: {error}; source CANN's set_env.sh, and see what "
            f"`export-om doctor` says of torch-npu"
        ) from error
    if not module.npu.is_available():
        raise ConfigError(
            "torch-npu sees no card, so there is nothing that --reference npu could run on; see "
            "what `export-om doctor` says"
        )
    name = module.npu.get_device_name(0)
    return ReferenceDevice(f"npu:0 ({name})", make_device("npu:0"))
