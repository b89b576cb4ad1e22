"""Read an ONNX file under the limits of atc's parser; weights beside it stay where they are.

Source: hicann/ge parser/parser/onnx/onnx_parser.cc, base/common/file_constant_utils.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from atc_pipeline.simatc.refusal import AtcRefusalError

# INT_MAX of the parser.
MAX_FILE_BYTES = 2**31 - 1


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model without its external data.

    Raises:
        AtcRefusalError: Too large, unreadable or no ONNX model.
    """
    size = path.stat().st_size
    if not 0 < size <= MAX_FILE_BYTES:
        raise AtcRefusalError("E13015", f"{path} has {size} bytes, wanted 1 to {MAX_FILE_BYTES}")
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise AtcRefusalError("E13001", f"cannot open {path}: {error}") from error
    except Exception as error:  # protobuf's own class belongs to a library we leave out
        raise AtcRefusalError("E13005", f"cannot parse {path}: {error}") from error
    if not model.HasField("graph"):
        raise AtcRefusalError("E16004", f"{path} holds no graph")
    return model
