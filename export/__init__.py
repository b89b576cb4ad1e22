"""A Hugging Face checkpoint into one ONNX step graph, proven equal to it; see `build.py`."""
