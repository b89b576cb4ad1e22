"""Kernels for the host's cores, in C++: what Python needs to hold and run them.

`src/native.h` is the whole interface between the two languages; `library.py` finds and loads the
shared library, and `program.py` wraps what it makes.
"""

from omruntime.native.library import find_library, load_library
from omruntime.native.program import Matrix, NativeProgram, ThreadPool

__all__ = ["Matrix", "NativeProgram", "ThreadPool", "find_library", "load_library"]
