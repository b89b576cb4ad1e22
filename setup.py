"""Compiles the native kernels where a C++ compiler is; all else stands in pyproject.toml.

Without a compiler the install goes on, and `--device native` is refused with what to do.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("omruntime/native/src")

setup(
    ext_modules=[
        # A plain shared library that ctypes loads: nothing of Python is in it.
        Extension(
            "omruntime.native._kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=[str(path) for path in SOURCES.rglob("*.h")],
            language="c++",
            # Instruction sets are chosen at run time, so that one build runs on every CPU.
            extra_compile_args=["-std=c++17", "-O3", "-pthread", "-fno-math-errno"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
