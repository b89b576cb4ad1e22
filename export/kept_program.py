"""The ONNX step graph that a bundle keeps, as a session.

A `cpu` bundle serves from it. An Ascend bundle serves from what ATC made of it, and keeps it for
being verified on any machine.
"""

from __future__ import annotations

from pathlib import Path

from export.paged_runner import StepSession
from export.result import PROGRAM_PATH
from export.session import open_session
from omruntime.errors import BundleError, ExportError
from omruntime.manifest import KVLayout, Manifest


def open_kept_program(bundle: Path, manifest: Manifest, num_threads: int) -> StepSession:
    """Load a bundle's step graph into the runtime that its types need.

    Raises:
        BundleError: The bundle keeps none, it cannot be loaded, or that needs a package which
            this installation lacks.
    """
    path = bundle / PROGRAM_PATH
    if not path.exists():
        raise BundleError(f"{bundle} keeps no {PROGRAM_PATH}, so nothing can be run again")
    try:
        return open_step_graph(path, manifest.kv.layout, manifest.kv.dtype, num_threads)
    except ImportError as error:
        raise BundleError(
            f"running the graph of a bundle for {manifest.soc} with a {manifest.kv.dtype} cache "
            f"needs the package {error.name}; install omserve[export,openvino]"
        ) from error
    except ExportError as error:
        raise BundleError(f"{path}: {error}") from error


def open_step_graph(path: Path, layout: KVLayout, dtype: str, num_threads: int) -> StepSession:
    """Load a step graph by how it keeps its pool.

    Raises:
        ExportError: The runtime refuses it.
        ImportError: The runtime is not installed.
    """
    # Late, as a bundle is verified where only what it needs itself is installed.
    if dtype == "bfloat16":
        from export.openvino_session import open_openvino

        return open_openvino(path, num_threads)
    session: StepSession
    if layout is KVLayout.HEAD_MAJOR:
        session = open_session(path, num_threads)
    else:
        from export.expanded_session import open_expanded

        session = open_expanded(path, num_threads)
    return session
