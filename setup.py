"""Compiles the native kernels where a C++ compiler is; all else stands in pyproject.toml.

Without a compiler the install goes on, and `--device native` is refused with what to do.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

SOURCES = Path("omruntime/native/src")
# As `omruntime/native/library.py` looks for it; an ending that Python takes for none of a module.
LIBRARY = "libomserve_native.so.1"


class BuildLibrary(build_ext):
    """Calls the shared library by its own name, and compiles its sources side by side."""

    def build_extensions(self) -> None:
        """One compiler for each core: a file for an instruction set takes a quarter of a minute."""
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile, unless this tree holds the library of these very sources already."""
        made = Path(self.get_ext_filename(ext.name))
        if self.inplace or newer_group([*ext.sources, *ext.depends, __file__], str(made)):
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, target)

    def get_ext_filename(self, fullname: str) -> str:
        """The path of the one extension there is."""
        return str(Path(*fullname.split(".")[:-1], LIBRARY))


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[
        # A plain shared library that ctypes loads: nothing of Python is in it.
        Extension(
            "omruntime.native.kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=[str(path) for path in SOURCES.rglob("*.h")],
            language="c++",
            # Instruction sets are chosen at run time, so that one build runs on every CPU. -O2
            # compiles in half the time and makes the same products, but samples half as fast.
            # GCC 12 warns of its own header for AVX-512.
            extra_compile_args=[
                *("-std=c++17", "-O3", "-g0", "-pthread", "-fno-math-errno"),
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
)
