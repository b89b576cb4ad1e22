"""Failures on demand, so that the driver of atc can be tested without hardware.

Variables that simatc alone reads, each labelled in its output:

- SIMATC_FAIL=E16002: refuse with this code before anything is compiled;
- SIMATC_SLEEP_S=2.5: wait first, for time limits;
- SIMATC_CRASH=SIGSEGV: die of this signal;
- SIMATC_MEMORY_MIB=512: hold so much memory while compiling.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError

VARIABLES = ("SIMATC_FAIL", "SIMATC_SLEEP_S", "SIMATC_CRASH", "SIMATC_MEMORY_MIB")


def inject(environ: Mapping[str, str]) -> bytearray:
    """Do what the variables ask for; returns the memory to hold.

    Raises:
        AtcRefusalError: A code was asked for.
        NotSimulatedError: A variable has a value that means nothing.
    """
    held = bytearray(int(_number(environ, "SIMATC_MEMORY_MIB") * 2**20))
    held[:: os.sysconf("SC_PAGE_SIZE")] = b"\1" * len(held[:: os.sysconf("SC_PAGE_SIZE")])
    time.sleep(_number(environ, "SIMATC_SLEEP_S"))
    name = environ.get("SIMATC_CRASH")
    if name:
        if name not in signal.Signals.__members__:
            raise NotSimulatedError(f"SIMATC_CRASH is {name!r}, wanted a name such as SIGSEGV")
        os.kill(os.getpid(), signal.Signals[name])
    if environ.get("SIMATC_FAIL"):
        raise AtcRefusalError(environ["SIMATC_FAIL"], "injected by SIMATC_FAIL")
    return held


def _number(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise NotSimulatedError(f"{name} is {text!r}, wanted a number of 0 or more")
    return value
