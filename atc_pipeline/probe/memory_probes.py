"""Probes of memory and copies."""

from __future__ import annotations

import numpy as np

from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.card import DDR, DEVICE_TO_DEVICE, HOST_TO_DEVICE, Memory
from atc_pipeline.probe.compiler import Shape
from atc_pipeline.probe.graphs import WIDTH, gather_rows, matmul_chain
from atc_pipeline.probe.outcome import Outcome, judge, measured, no_answer

_ROW_BYTES = 2 * WIDTH
_COUNT = 4


def soc_name(bench: Bench) -> Outcome:
    """The chip's name is the target's."""
    found = bench.card.acl.get_soc_name()
    return judge(
        found == bench.compiler.soc_version,
        f"acl says {found!r}, the probes were compiled for {bench.compiler.soc_version!r}",
    )


def device_count(bench: Bench) -> Outcome:
    """How many devices this process sees; a 300I Duo counts as two."""
    count, status = bench.card.acl.rt.get_device_count()
    bench.card.check("rt.get_device_count", status)
    return measured(f"{count} device(s)")


def memory_info(bench: Bench) -> Outcome:
    """The attribute of DDR gives this card's memory."""
    free, total, status = bench.card.acl.rt.get_mem_info(DDR)
    bench.card.check("rt.get_mem_info", status)
    return judge(0 < free <= total, f"{free} bytes free of {total}")


def load_memory(bench: Bench) -> Outcome:
    """What loading an OM takes beside what it announces."""
    om = bench.compiler.compile(matmul_chain(), Shape({"x": (8, WIDTH)}))
    work, weight, status = bench.card.acl.mdl.query_size(str(om))
    bench.card.check("mdl.query_size", status)
    before = bench.card.free_bytes()
    with bench.load(om):
        taken = before - bench.card.free_bytes()
    return measured(f"{taken} bytes taken, work {work} and weights {weight} announced")


def copy_of_nothing(bench: Bench) -> Outcome:
    """What a copy of 0 bytes gives; this project never asks for one."""
    memory = Memory(bench.card, 64)
    data = bytes(64)
    rt, util = bench.card.acl.rt, bench.card.acl.util
    try:
        status = rt.memcpy(memory.address, 64, util.bytes_to_ptr(data), 0, HOST_TO_DEVICE)
    finally:
        memory.free()
    return measured(f"status {status}")


def unaligned_copy(bench: Bench) -> Outcome:
    """Whether an asynchronous copy between addresses of 32 bytes moves the right bytes."""
    data = bytes(range(192))
    source, target = Memory(bench.card, 192), Memory(bench.card, 192)
    rt, stream = bench.card.acl.rt, bench.card.stream
    try:
        source.write(data)
        target.write(bytes(192))
        status = rt.memcpy_async(
            target.address + 32, 160, source.address + 32, 64, DEVICE_TO_DEVICE, stream
        )
        bench.card.check("rt.memcpy_async", status)
        bench.card.check("rt.synchronize_stream", rt.synchronize_stream(stream))
        right = target.read(192)[32:96] == data[32:96]
    finally:
        source.free()
        target.free()
    return measured(f"the bytes are {'right' if right else 'wrong'}")


def pool_written_between_runs(bench: Bench) -> Outcome:
    """A run sees what was copied into its input buffer after the run before."""
    slots = 16
    om = bench.compiler.compile(gather_rows(), Shape({"ids": (_COUNT,), "pool": (slots, WIDTH)}))
    rt, stream = bench.card.acl.rt, bench.card.stream
    with bench.load(om) as loaded:
        ids, pool = (loaded.inputs[loaded.input_names.index(name)] for name in ("ids", "pool"))
        ids.write(np.full(_COUNT, 3, np.int32).tobytes())
        pool.write(np.zeros((slots, WIDTH), np.float16).tobytes())
        loaded.run()
        fresh = Memory(bench.card, _ROW_BYTES)
        try:
            fresh.write(np.ones(WIDTH, np.float16).tobytes())
            status = rt.memcpy_async(
                pool.address + 3 * _ROW_BYTES,
                _ROW_BYTES,
                fresh.address,
                _ROW_BYTES,
                DEVICE_TO_DEVICE,
                stream,
            )
            bench.card.check("rt.memcpy_async", status)
            loaded.run()
        finally:
            fresh.free()
        rows = np.frombuffer(loaded.outputs[0].read(_COUNT * _ROW_BYTES), np.float16)
        return judge(bool((rows == 1).all()), f"the row reads {rows[0]} after 1 was written")


def large_pool(bench: Bench) -> Outcome:
    """Whether a pool of more than 2**31 elements is addressed to its end; none is made."""
    slots = bench.large_pool_slots
    needed, free = slots * _ROW_BYTES, bench.card.free_bytes()
    if free < needed + (256 << 20):
        return no_answer(f"needs {needed} bytes of device memory and some, {free} are free")
    om = bench.compiler.compile(gather_rows(), Shape({"ids": (_COUNT,), "pool": (slots, WIDTH)}))
    with bench.load(om) as loaded:
        ids, pool = (loaded.inputs[loaded.input_names.index(name)] for name in ("ids", "pool"))
        ids.write(np.full(_COUNT, slots - 1, np.int32).tobytes())
        last = np.arange(WIDTH).astype(np.float16)
        pool.write(last.tobytes(), (slots - 1) * _ROW_BYTES)
        loaded.run()
        rows = np.frombuffer(loaded.outputs[0].read(_COUNT * _ROW_BYTES), np.float16)
    right = bool((rows.reshape(_COUNT, WIDTH) == last).all())
    return measured(f"{slots * WIDTH} elements, the last row reads {'right' if right else 'wrong'}")
