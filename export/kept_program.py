"""The ONNX step graph that a bundle keeps, as a session.

A `cpu` bundle serves from it. An Ascend bundle serves from what ATC made of it, and keeps it for
being verified on any machine.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from export.result import PROGRAM_PATH
from export.session import open_session
from omruntime.errors import BundleError, ExportError
from omruntime.manifest import KVLayout, Manifest


def open_kept_program(
    bundle: Path, manifest: Manifest, num_threads: int
) -> onnxruntime.InferenceSession:
    """Load a bundle's step graph into ONNX Runtime.

    Raises:
        BundleError: The bundle keeps none, it cannot be loaded, or that needs a package which
            this installation lacks.
    """
    path = bundle / PROGRAM_PATH
    if not path.exists():
        raise BundleError(f"{bundle} keeps no {PROGRAM_PATH}, so nothing can be run again")
    try:
        if manifest.kv.layout is KVLayout.HEAD_MAJOR:
            return open_session(path, num_threads)
        # Late, as a cpu bundle is verified where onnx is not installed.
        from export.expanded_session import open_expanded

        return open_expanded(path, num_threads)
    except ImportError as error:
        raise BundleError(
            f"running the graph of a bundle for {manifest.soc} needs the package {error.name}; "
            f"install omserve[export]"
        ) from error
    except ExportError as error:
        raise BundleError(f"{path}: {error}") from error
